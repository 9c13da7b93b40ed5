-- Tenants before their lanes, as whoever deletes one locks them: else we would wait for them, and they for us.
with present as materialized (
    select t.id from tenantry.tenants t
    where t.id = any (%(tenants)s)
    order by t.id
    for key share
)
select l.tenant_id, l.channel, l.sequence, l.generation
from present p
join unnest(%(tenants)s::text[], %(channels)s::text[]) as w (tenant_id, channel) on w.tenant_id = p.id
join tenantry.pipeline_lanes l
    on l.pipeline = %(pipeline)s and l.tenant_id = w.tenant_id and l.channel = w.channel
where l.parked_at is null
order by l.tenant_id, l.channel
for update of l
