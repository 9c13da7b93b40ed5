insert into tenantry.outbox_lanes (tenant_id, channel, is_open, payload)
select * from unnest(%(tenants)s::text[], %(channels)s::text[], %(open)s::boolean[], %(payloads)s::integer[])
on conflict (tenant_id, channel) do update set is_open = excluded.is_open, payload = excluded.payload
