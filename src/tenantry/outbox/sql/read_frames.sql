-- The next events of lanes, as NATS takes them: PostgreSQL writes the frames, so that nobody else has to touch an event.
-- In a chained lane each names the one before it, the first by its sequence, and asks for no answer.
select l.lane, f.events, f.cost, f.last_ticket, f.last_id, f.last_size, f.is_cut_short, f.frames
from unnest(
    %(lanes)s::integer[], %(tickets)s::bigint[], %(ids)s::bigint[], %(horizons)s::bigint[], %(quotas)s::integer[],
    %(sizes)s::integer[], %(prefixes)s::text[], %(id_prefixes)s::text[], %(inboxes)s::text[], %(replies)s::bigint[],
    %(chained)s::boolean[], %(previous)s::text[], %(sequences)s::bigint[], %(starts)s::timestamptz[]
) as l (
    lane, ticket, id, horizon, quota, size, prefix, id_prefix, inbox, reply, chained, previous, sequence, starts_at
)
cross join lateral (
    select
        (count(*) filter (where r.fits))::integer as events,
        (sum(r.cost) filter (where r.fits))::integer as cost,
        max(r.ticket) filter (where r.fits) as last_ticket,
        (array_agg(r.id order by r.ticket, r.id))[count(*) filter (where r.fits)] as last_id,
        (array_agg(r.size + octet_length(r.chain) order by r.ticket, r.id))[count(*) filter (where r.fits)] as last_size,
        coalesce(bool_or(not r.fits), false) as is_cut_short,
        convert_to(
            string_agg(
                'HPUB ' || l.prefix || '.' || r.type
                || case when l.chained then ' ' else ' ' || l.inbox || (l.reply + r.number - 1) || ' ' end
                || (r.size - octet_length(r.document) + octet_length(r.chain))
                || ' ' || (r.size + octet_length(r.chain))
                || e'\r\nNATS/1.0\r\nNats-Msg-Id: ' || l.id_prefix || r.event_id || e'\r\ntraceparent: ' || r.traceparent
                || case when r.tracestate is null then e'\r\n' else e'\r\ntracestate: ' || r.tracestate || e'\r\n' end
                || r.chain || e'\r\n' || r.document || e'\r\n',
                '' order by r.ticket, r.id
            ) filter (where r.fits),
            'UTF8'
        ) as frames
    from (
        select
            o.*,
            1 + o.size / 4096 as cost,
            row_number() over lane as number,
            sum(1 + o.size / 4096) over lane - 1 - o.size / 4096 as cost_before,
            not bool_or(o.size > l.size) over lane as fits,
            case
                when l.chained
                then coalesce(
                    'Nats-Expected-Last-Msg-Id: ' || coalesce(l.id_prefix || lag(o.event_id) over lane, l.previous) || e'\r\n',
                    'Nats-Expected-Last-Sequence: ' || l.sequence || e'\r\n',
                    ''
                )
                else ''
            end as chain
        from (
            select o.ticket, o.id, o.event_id, o.type, o.size, o.traceparent, o.tracestate, o.document
            from tenantry.outbox o
            where o.lane = l.lane and (o.ticket, o.id) > (l.ticket, l.id) and o.ticket <= l.horizon
            and o.created_at >= l.starts_at
            order by o.ticket, o.id
            limit l.quota
        ) o
        window lane as (order by o.ticket, o.id rows unbounded preceding)
    ) r
    where r.cost_before < l.quota
) f
