select sequence, generation
from tenantry.pipeline_lanes
where pipeline = %(rebuild)s and tenant_id = %(tenant)s and channel = %(channel)s
for update
