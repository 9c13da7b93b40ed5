with passed as (
    update tenantry.outbox_cursors
    set ticket = %(ticket)s, id = %(id)s, moved_at = clock_timestamp(), attempts = 0, retry_at = '-infinity', last_error = ''
    where lane = %(lane)s and holder = %(holder)s
    returning lane
),
buried as (
    insert into tenantry.outbox_dead_letters (
        lane, ticket, id, event_id, type, traceparent, document, attempts, reason, created_at
    )
    select o.lane, o.ticket, o.id, o.event_id, o.type, o.traceparent, o.document, %(attempts)s, %(reason)s, o.created_at
    from tenantry.outbox o
    join passed p on p.lane = o.lane
    where o.lane = %(lane)s and o.ticket = %(ticket)s and o.id = %(id)s
    on conflict do nothing
)
select lane from passed
