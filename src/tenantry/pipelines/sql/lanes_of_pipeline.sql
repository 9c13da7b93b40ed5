select tenant_id, channel, id, sequence, epoch, query, place, parked_at is not null as is_parked
from tenantry.pipeline_lanes where pipeline = %(pipeline)s
