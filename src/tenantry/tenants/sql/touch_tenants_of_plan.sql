update tenantry.tenants
set revision = revision + 1, retry_at = now()
where plan = %(plan)s
