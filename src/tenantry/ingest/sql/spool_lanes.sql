select l.id, l.tenant_id, l.channel
from tenantry.outbox_lanes l
join unnest(%(tenants)s::text[], %(channels)s::text[]) wanted (tenant_id, channel) using (tenant_id, channel)
where l.is_open
