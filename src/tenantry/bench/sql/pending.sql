select count(*) as lanes
from tenantry.outbox_cursors c
join tenantry.outbox_lanes l on l.id = c.lane and %(tenant)s in ('', l.tenant_id)
cross join lateral (
    select o.id from tenantry.outbox o
    where o.lane = c.lane and (o.ticket, o.id) > (c.ticket, c.id)
    order by o.ticket, o.id limit 1
) first
