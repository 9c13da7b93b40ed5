delete from tenantry.outbox_lanes l
using unnest(%(tenants)s::text[], %(channels)s::text[]) as gone (tenant_id, channel)
where l.tenant_id = gone.tenant_id and l.channel = gone.channel
