-- Transactions that hold lanes back: what they are, since when, and how many lanes.
-- Of another role's transactions PostgreSQL does not say when they began; what waits behind them does, nearly.
select
    h.pid, a.application_name, a.usename as "user",
    extract(epoch from clock_timestamp() - coalesce(a.xact_start, min(behind.created_at)))::double precision as seconds,
    count(distinct h.lane)::integer as lanes, min(l.tenant_id) as tenant
from tenantry.outbox_horizon() h
left join pg_stat_activity a on a.pid = h.pid
left join tenantry.outbox_lanes l on l.id = h.lane
left join lateral (
    select o.created_at
    from tenantry.outbox o
    where a.xact_start is null and o.lane = h.lane and o.ticket > h.ticket
    order by o.ticket, o.id
    limit 1
) behind on true
where h.lane is not null
group by h.pid, a.application_name, a.usename, a.xact_start
having h.pid is null or coalesce(a.xact_start, min(behind.created_at)) < clock_timestamp() - make_interval(secs => %(seconds)s)
