select d.id, d.job, j.kind, d.service, d.tenant_id, d.part, d.state, d.key, d.subject, d.payload, d.headers, d.sequence,
    d.deliveries, d.published_at
from tenantry.dead_letters d
join tenantry.subscription_jobs j on j.id = d.job and j.state = 'running'
join unnest(%(services)s::text[], %(tenants)s::text[], %(parts)s::integer[]) as p (service, tenant_id, part)
    on (p.service, p.tenant_id, p.part) = (d.service, d.tenant_id, d.part)
order by d.service, d.tenant_id, d.part, d.sequence
limit %(limit)s
