insert into tenantry.outbox_lanes (tenant_id, channel, tenant_uid, is_open, payload)
select * from unnest(%(tenants)s::text[], %(channels)s::text[], %(uids)s::uuid[], %(open)s::boolean[], %(payloads)s::integer[])
on conflict (tenant_id, channel) do update set is_open = excluded.is_open, payload = excluded.payload
