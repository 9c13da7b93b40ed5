-- Rows for which nobody had made a partition, once they are published and old.
delete from tenantry.outbox_other o
where o.created_at < now() - make_interval(secs => %(keep)s)
and not exists (
    select from tenantry.outbox_cursors c where c.lane = o.lane and (o.ticket, o.id) > (c.ticket, c.id)
)
