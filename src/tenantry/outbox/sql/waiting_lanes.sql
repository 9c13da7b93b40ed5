-- Lanes with something that can be published now, of tenants that are not held already.
select l.tenant_id, l.channel
from tenantry.outbox_cursors c
join tenantry.outbox_lanes l on l.id = c.lane
left join unnest(%(lanes)s::integer[], %(tickets)s::bigint[]) as held (lane, ticket) on held.lane = c.lane
cross join lateral (
    -- One look into the index for each lane, however many events there are.
    select o.id
    from tenantry.outbox o
    where o.lane = c.lane and (o.ticket, o.id) > (c.ticket, c.id) and o.ticket <= least(%(horizon)s, held.ticket)
    and o.created_at >= c.starts_at
    order by o.ticket, o.id
    limit 1
) first
where c.retry_at <= clock_timestamp() and not l.is_suspended
and l.tenant_id <> all (%(but)s::text[])
