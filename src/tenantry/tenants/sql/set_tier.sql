with moved as (
    update tenantry.channels set pool = null where tenant_id = %(id)s
)
update tenantry.tenants
set tier = %(tier)s, revision = revision + 1, retry_at = now(), updated_at = now()
where id = %(id)s
