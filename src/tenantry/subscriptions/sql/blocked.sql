select d.service, d.tenant_id, d.part, d.key,
    case when d.state = 'stopped' then 'stopped' else 'parked' end as state, min(d.sequence) as sequence, count(*) as count
from tenantry.dead_letters d
join unnest(%(services)s::text[], %(tenants)s::text[], %(parts)s::integer[]) as p (service, tenant_id, part)
    using (service, tenant_id, part)
where d.state <> 'dead'
group by 1, 2, 3, 4, 5
