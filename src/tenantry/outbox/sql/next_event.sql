select o.ticket, o.id, o.event_id, o.type, o.size, o.traceparent, o.created_at
from tenantry.outbox o
where o.lane = %(lane)s and (o.ticket, o.id) > (%(ticket)s, %(id)s) and o.ticket <= %(horizon)s
and o.created_at >= %(starts_at)s
order by o.ticket, o.id
limit 1
