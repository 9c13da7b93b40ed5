delete from tenantry.lake_tables
where location = %(location)s and tenant_uid = %(uid)s and erased_at is not null
