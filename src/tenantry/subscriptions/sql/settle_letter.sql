with settled as (
    delete from tenantry.dead_letters where id = %(id)s
    returning service, tenant_id, part, key, id
), counted as (
    update tenantry.subscription_jobs set done = done + 1, updated_at = now()
    where id = %(job)s and exists (select from settled)
)
select count(*) as left
from tenantry.dead_letters d
join settled s using (service, tenant_id, part, key)
where d.state in ('parked', 'held') and d.id <> s.id
