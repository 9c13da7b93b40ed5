delete from tenantry.documents d
using unnest(%(tenants)s::text[], %(channels)s::text[]) as w (tenant_id, channel)
join tenantry.pipeline_lanes l
    on l.pipeline = %(pipeline)s and l.tenant_id = w.tenant_id and l.channel = w.channel
where d.tenant_id = l.tenant_id and d.projection = %(pipeline)s and d.channel = l.channel and d.generation <> l.generation
