update tenantry.tenants
set status = %(status)s, status_since = now(), revision = revision + 1, retry_at = now(), updated_at = now()
where id = %(id)s
