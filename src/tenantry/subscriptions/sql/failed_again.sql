-- What has the same key is held back by it again.
with failed as (
    update tenantry.dead_letters
    set reason = %(reason)s, traceback = %(traceback)s, deliveries = deliveries + 1, died_at = now(), job = null
    where id = %(id)s
    returning service, tenant_id, part, key, state, sequence
), after as (
    update tenantry.dead_letters d set job = null
    from failed f
    where d.job = %(job)s and f.state in ('parked', 'held') and d.service = f.service and d.tenant_id = f.tenant_id
        and d.part = f.part and d.key = f.key and d.sequence > f.sequence
    returning d.id
)
update tenantry.subscription_jobs
set failed = failed + 1 + (select count(*) from after), updated_at = now(), problem = %(reason)s
where id = %(job)s
