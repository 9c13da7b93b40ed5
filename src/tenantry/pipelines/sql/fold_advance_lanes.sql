update tenantry.pipeline_lanes l
set
    sequence = w.sequence,
    parked_at = case when w.parked_reason is not null then now() end,
    parked_sequence = w.parked_sequence,
    parked_reason = w.parked_reason,
    parked_traceback = w.parked_traceback,
    updated_at = now()
from unnest(
    %(tenants)s::text[], %(channels)s::text[], %(sequences)s::bigint[], %(parked_sequences)s::bigint[],
    %(parked_reasons)s::text[], %(parked_tracebacks)s::text[]
) as w (tenant_id, channel, sequence, parked_sequence, parked_reason, parked_traceback)
where l.pipeline = %(pipeline)s and l.tenant_id = w.tenant_id and l.channel = w.channel
