-- After the turn was taken, never with it: only then is this what the one before has left.
with mine as (
    select c.lane, c.holder
    from tenantry.outbox_cursors c
    join tenantry.outbox_lanes l on l.id = c.lane
    where l.tenant_id = any (%(tenants)s)
),
taken as (
    update tenantry.outbox_cursors c set holder = %(holder)s
    from mine
    where c.lane = mine.lane and c.holder <> %(holder)s
)
select
    l.tenant_id, l.channel, c.lane, c.ticket, c.id, c.starts_at, c.stream, c.sequence, c.attempts,
    c.holder = %(holder)s as is_known, extract(epoch from c.retry_at - clock_timestamp())::double precision as wait
from tenantry.outbox_cursors c
join tenantry.outbox_lanes l on l.id = c.lane
where l.tenant_id = any (%(tenants)s)
