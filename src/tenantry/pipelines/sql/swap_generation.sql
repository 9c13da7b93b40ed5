-- All up to its sequence is applied now, also what it was parked at; then it is read from there, in another epoch.
update tenantry.pipeline_lanes
set generation = %(generation)s, sequence = greatest(sequence, %(sequence)s), epoch = epoch + (parked_at is not null)::integer,
    parked_at = null, parked_sequence = null, parked_reason = null, parked_traceback = null, updated_at = now()
where pipeline = %(pipeline)s and tenant_id = %(tenant)s and channel = %(channel)s
returning sequence
