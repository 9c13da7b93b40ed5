select l.id as lane, newest.ticket, newest.id
from tenantry.outbox_lanes l
join tenantry.outbox_cursors c on c.lane = l.id
cross join lateral (
    select o.ticket, o.id from tenantry.outbox o where o.lane = l.id order by o.ticket desc, o.id desc limit 1
) newest
where l.tenant_id = %(tenant)s and l.channel = %(channel)s and (newest.ticket, newest.id) > (c.ticket, c.id)
