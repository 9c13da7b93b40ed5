with moved as (
    update tenantry.outbox_cursors c
    set
        ticket = m.ticket, id = m.id, stream = m.stream, sequence = m.sequence,
        moved_at = clock_timestamp(), attempts = 0, retry_at = '-infinity', last_error = ''
    from unnest(
        %(lanes)s::integer[], %(tickets)s::bigint[], %(ids)s::bigint[], %(streams)s::text[], %(sequences)s::bigint[],
        %(attempts)s::integer[]
    ) as m (lane, ticket, id, stream, sequence, attempts)
    where c.lane = m.lane and c.holder = %(holder)s
    returning c.lane, c.ticket, c.id, m.attempts
),
recorded as (
    insert into tenantry.outbox_batches (lane, ticket, id, attempts)
    select lane, ticket, id, attempts from moved
    on conflict do nothing
)
select lane from moved
