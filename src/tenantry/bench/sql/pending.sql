select count(*) as lanes
from tenantry.outbox_cursors c
cross join lateral (
    select o.id from tenantry.outbox o
    where o.lane = c.lane and (o.ticket, o.id) > (c.ticket, c.id)
    order by o.ticket, o.id limit 1
) first
