select marked.lane
from unnest(%(lanes)s::integer[], %(tickets)s::bigint[], %(ids)s::bigint[]) marked (lane, ticket, id)
left join tenantry.outbox_cursors c on c.lane = marked.lane
-- A lane that is gone has nothing left to wait for.
where c.lane is null or (c.ticket, c.id) >= (marked.ticket, marked.id)
