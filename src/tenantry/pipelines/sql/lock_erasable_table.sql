-- One at a time, so that whoever erases the last table of a tenant knows that it was the last.
select from tenantry.lake_tables t
where t.location = %(location)s and t.tenant_uid = %(uid)s
    and not exists (select from tenantry.tenants n where n.uid = t.tenant_uid)
    and pg_try_advisory_xact_lock(7375, 1)
for update of t skip locked
