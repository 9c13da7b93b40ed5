select tenant_id, channel, generation
from tenantry.pipeline_lanes
where pipeline = %(pipeline)s and (%(tenant)s::text is null or tenant_id = %(tenant)s)
