update tenantry.lake_tables
set rows = %(rows)s, bytes = %(bytes)s, files = %(files)s, version = %(version)s, maintained_at = now()
where location = %(location)s and tenant_uid = %(uid)s
