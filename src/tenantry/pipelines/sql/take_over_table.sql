-- If maintenance has not erased it before, it still has to tell the audit log that it was.
update tenantry.lake_tables
set tenant_uid = %(uid)s, rows = 0, bytes = 0, files = 0, version = 0, erased_at = null, created_at = now(),
    maintained_at = null, is_erasure_untold = is_erasure_untold or erased_at is null
where location = %(location)s
