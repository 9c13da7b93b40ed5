-- A lane that has published all there is in a partition need not be looked for there again.
update tenantry.outbox_cursors c
set starts_at = p.ends_at
from tenantry.outbox_partitions p
where p.last_ticket <= %(horizon)s and c.starts_at < p.ends_at and c.lane <> all (%(held)s::integer[])
and p.ends_at = (select max(l.ends_at) from tenantry.outbox_partitions l where l.last_ticket <= %(horizon)s)
and not exists (
    select
    from tenantry.outbox o
    where o.lane = c.lane and (o.ticket, o.id) > (c.ticket, c.id)
    and o.created_at >= c.starts_at and o.created_at < p.ends_at
)
