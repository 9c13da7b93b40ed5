select e.event_id as id, e.channel, e.type, e.state, e.created_at, e.published_at, e.attempts, e.last_error, e.traceparent, e.size
from tenantry.outbox_lanes l
join tenantry.outbox_cursors c on c.lane = l.id
cross join lateral (
    select * from tenantry.outbox_events e
    where e.lane = l.id
    and (%(state)s::text is null or e.state = %(state)s)
    and (%(state)s is distinct from 'pending' or (e.ticket, e.id) > (c.ticket, c.id))
    and (%(state)s is distinct from 'failed' or (e.lane, e.ticket, e.id) in (
        select d.lane, d.ticket, d.id from tenantry.outbox_dead_letters d where d.lane = l.id
    ))
    order by e.ticket desc, e.id desc
    limit %(limit)s
) e
where l.tenant_id = %(tenant)s
order by e.created_at desc, e.id desc
limit %(limit)s
