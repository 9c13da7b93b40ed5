update tenantry.pipeline_lanes
set parked_at = now(), parked_sequence = %(sequence)s, parked_reason = %(reason)s, parked_traceback = %(traceback)s, updated_at = now()
where pipeline = %(pipeline)s and tenant_id = %(tenant)s and channel = %(channel)s and parked_at is null
