-- What was done is counted where the position moves, so a batch that is repeated counts once.
with done as (
    select * from unnest(
        %(tenants)s::text[], %(channels)s::text[], %(sequences)s::bigint[], %(events)s::bigint[], %(bytes)s::bigint[],
        %(stored)s::bigint[], %(seconds)s::double precision[]
    ) as d (tenant_id, channel, sequence, events, bytes, stored_bytes, task_seconds)
), moved as (
    update tenantry.pipeline_lanes l
    set sequence = d.sequence, updated_at = now()
    from done d
    where l.pipeline = %(pipeline)s and l.tenant_id = d.tenant_id and l.channel = d.channel and l.sequence < d.sequence
    and l.parked_at is null
    returning d.*
)
insert into tenantry.usage as u (tenant_id, channel, pipeline, minute, events, bytes, stored_bytes, task_seconds)
select tenant_id, channel, %(pipeline)s, date_trunc('minute', now()), events, bytes, stored_bytes, task_seconds
from moved where events > 0
on conflict (tenant_id, minute, pipeline, channel) do update
set events = u.events + excluded.events, bytes = u.bytes + excluded.bytes,
    stored_bytes = u.stored_bytes + excluded.stored_bytes, task_seconds = u.task_seconds + excluded.task_seconds
