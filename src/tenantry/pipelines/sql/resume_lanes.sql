-- Another epoch: it is read from where it was parked, wherever the query is by now.
update tenantry.pipeline_lanes
set parked_at = null, parked_sequence = null, parked_reason = null, parked_traceback = null, epoch = epoch + 1, updated_at = now()
where pipeline = %(pipeline)s and tenant_id = %(tenant)s and (%(channel)s::text is null or channel = %(channel)s)
and parked_at is not null
returning channel, sequence
