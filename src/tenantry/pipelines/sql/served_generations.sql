select channel, generation
from tenantry.pipeline_lanes
where pipeline = %(projection)s and tenant_id = %(tenant)s
