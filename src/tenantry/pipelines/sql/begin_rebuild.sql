insert into tenantry.pipeline_lanes (pipeline, tenant_id, channel, query, place, generation)
select %(rebuild)s, l.tenant_id, l.channel, 'rebuild', l.place, l.generation + 1
from unnest(%(tenants)s::text[], %(channels)s::text[]) as w (tenant_id, channel)
join tenantry.pipeline_lanes l on l.pipeline = %(pipeline)s and l.tenant_id = w.tenant_id and l.channel = w.channel
on conflict do nothing
