update tenantry.tenants
set name = %(name)s,
    plan = %(plan)s,
    overrides = %(overrides)s,
    placement = %(placement)s,
    revision = revision + 1,
    retry_at = now(),
    updated_at = now()
where id = %(id)s
