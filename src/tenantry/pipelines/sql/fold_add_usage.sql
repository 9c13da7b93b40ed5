insert into tenantry.usage as u (tenant_id, channel, pipeline, minute, events, bytes, stored_bytes, task_seconds)
select w.tenant_id, w.channel, %(pipeline)s, date_trunc('minute', now()), w.events, w.bytes, 0, w.task_seconds
from unnest(
    %(tenants)s::text[], %(channels)s::text[], %(events)s::bigint[], %(bytes)s::bigint[],
    %(task_seconds)s::double precision[]
) as w (tenant_id, channel, events, bytes, task_seconds)
on conflict (tenant_id, minute, pipeline, channel) do update
set
    events = u.events + excluded.events,
    bytes = u.bytes + excluded.bytes,
    task_seconds = u.task_seconds + excluded.task_seconds
