-- Some of each partition: what one tenant asks for is not to keep another's waiting.
select d.id, d.job, d.kind, d.service, d.tenant_id, d.part, d.state, d.key, d.subject, d.payload, d.headers, d.sequence,
    d.deliveries, d.published_at
from unnest(%(services)s::text[], %(tenants)s::text[], %(parts)s::integer[]) as p (service, tenant_id, part)
cross join lateral (
    select l.*, j.kind
    from tenantry.dead_letters l
    join tenantry.subscription_jobs j on j.id = l.job and j.state = 'running'
    where (l.service, l.tenant_id, l.part) = (p.service, p.tenant_id, p.part) and l.job is not null
    order by l.sequence
    limit %(limit)s
) d
order by d.service, d.tenant_id, d.part, d.sequence
