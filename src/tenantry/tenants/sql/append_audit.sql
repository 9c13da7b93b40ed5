with appended as (
    insert into tenantry.audit (number, at, actor, act, tenant_id, before, after, previous, mac)
    values (%(number)s, %(at)s, %(actor)s, %(act)s, %(tenant_id)s, %(before)s, %(after)s, %(previous)s, %(mac)s)
)
update tenantry.audit_head set number = %(number)s, mac = %(mac)s
