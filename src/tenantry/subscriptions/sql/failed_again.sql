-- What has the same key is held back by it again, whoever asked for it.
with failed as (
    update tenantry.dead_letters
    set reason = %(reason)s, traceback = %(traceback)s, deliveries = deliveries + 1, died_at = now(), job = null
    where id = %(id)s
    returning service, tenant_id, part, key, state, sequence
), after as (
    select d.id, d.job
    from tenantry.dead_letters d
    join failed f using (service, tenant_id, part, key)
    where d.job is not null and f.state in ('parked', 'held') and d.sequence > f.sequence
), released as (
    update tenantry.dead_letters d set job = null from after where d.id = after.id
), failures as (
    select job, count(*) as number
    from (select job from after union all select %(job)s::uuid) each
    group by job
)
update tenantry.subscription_jobs j
set failed = j.failed + f.number, updated_at = now(), problem = %(reason)s
from failures f
where j.id = f.job
