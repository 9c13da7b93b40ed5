select tenant_id, channel, sequence, query, generation, parked_at, parked_sequence, parked_reason, parked_traceback, updated_at
from tenantry.pipeline_lanes
where pipeline = %(pipeline)s and (%(tenant)s::text is null or tenant_id = %(tenant)s)
order by parked_at is null, tenant_id, channel
