insert into tenantry.outbox_lanes (tenant_id, channel, tenant_uid, is_open, is_suspended, payload)
select *
from unnest(
    %(tenants)s::text[], %(channels)s::text[], %(uids)s::uuid[], %(open)s::boolean[], %(suspended)s::boolean[],
    %(payloads)s::integer[]
)
on conflict (tenant_id, channel) do update
set is_open = excluded.is_open, is_suspended = excluded.is_suspended, payload = excluded.payload
