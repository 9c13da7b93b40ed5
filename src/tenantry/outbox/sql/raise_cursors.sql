-- A lane that has published all there is in a partition need not be looked for there again.
with settled as materialized (
    -- Up to this ticket, all that there is and ever will be of the lane is published.
    select c.lane, least(%(horizon)s, held.ticket, first.ticket - 1) as ticket
    from tenantry.outbox_cursors c
    left join (
        select h.lane, min(h.ticket) as ticket
        from unnest(%(lanes)s::integer[], %(tickets)s::bigint[]) as h (lane, ticket)
        group by h.lane
    ) held on held.lane = c.lane
    left join lateral (
        select o.ticket
        from tenantry.outbox o
        where o.lane = c.lane and (o.ticket, o.id) > (c.ticket, c.id) and o.created_at >= c.starts_at
        order by o.ticket, o.id
        limit 1
    ) first on true
    where c.starts_at < (select max(p.ends_at) from tenantry.outbox_partitions p where p.last_ticket is not null)
    -- A relay that moves several cursors must not wait for one of ours while we wait for one of its.
    for no key update of c skip locked
)
update tenantry.outbox_cursors c
set starts_at = s.starts_at
from (
    select settled.lane, max(p.ends_at) as starts_at
    from settled
    join tenantry.outbox_partitions p on p.last_ticket <= settled.ticket
    group by settled.lane
) s
where c.lane = s.lane and c.starts_at < s.starts_at
