-- A tenant or channel that was erased meanwhile has no lanes.
insert into tenantry.pipeline_lanes (pipeline, tenant_id, channel, id, sequence, epoch, query, place)
select %(pipeline)s, l.*
from unnest(
    %(tenants)s::text[], %(channels)s::text[], %(ids)s::uuid[], %(sequences)s::bigint[], %(epochs)s::integer[], %(queries)s::text[],
    %(places)s::text[]
) as l (tenant_id, channel, id, sequence, epoch, query, place)
where exists (select from tenantry.channels c where c.tenant_id = l.tenant_id and c.name = l.channel)
on conflict (pipeline, tenant_id, channel) do update
set
    -- Of one and the same tenant, what somebody else has noted meanwhile is not taken back.
    sequence = case
        when split_part(pipeline_lanes.place, '/', 1) = split_part(excluded.place, '/', 1)
        then greatest(pipeline_lanes.sequence, excluded.sequence) else excluded.sequence
    end,
    id = excluded.id, epoch = excluded.epoch, query = excluded.query, place = excluded.place, updated_at = now()
