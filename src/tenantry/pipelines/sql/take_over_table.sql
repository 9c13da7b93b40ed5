update tenantry.lake_tables
set tenant_uid = %(uid)s, rows = 0, bytes = 0, files = 0, version = 0, erased_at = null, created_at = now()
where location = %(location)s
