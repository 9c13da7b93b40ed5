-- Somebody else may have chosen some of them meanwhile: what counts is what this one got.
with handed_over as (
    update tenantry.dead_letters as d
    set job = j.id
    from {{chosen_dead_letters}} as c
    join tenantry.subscription_jobs as j on j.service = c.service and j.id = any(%(jobs)s)
    where d.id = c.id and d.job is null and (%(kind)s = 'redrive' or d.state <> 'dead')
    returning d.job, d.owner_id
),
counted as (
    select job, count(*) as total,
        case when count(distinct owner_id) = 1 and count(owner_id) = count(*) then min(owner_id) end as owner_id
    from handed_over
    group by job
)
update tenantry.subscription_jobs as j
set total = c.total, tenant_id = c.owner_id
from counted as c
where j.id = c.job
returning j.id, j.kind, j.service, j.tenant_id, j.request, j.state, j.done, j.failed, j.total, j.problem, j.asked_by,
    j.asked_at, j.updated_at
