insert into tenantry.pipeline_lanes (pipeline, tenant_id, channel, query, place, generation)
select %(rebuild)s, tenant_id, channel, 'rebuild', place, generation + 1
from tenantry.pipeline_lanes
where pipeline = %(pipeline)s and (%(tenant)s::text is null or tenant_id = %(tenant)s)
on conflict do nothing
