update tenantry.tenants
set revision = revision + 1, retry_at = now(), updated_at = now()
where id = %(id)s
