delete from tenantry.pipeline_lanes
where pipeline = %(rebuild)s
    and (tenant_id, channel) in (select * from unnest(%(tenants)s::text[], %(channels)s::text[]))
