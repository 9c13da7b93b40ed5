-- Transactions that hold lanes back: what they are, since when, and which of their lanes have something that waits.
select
    h.pid, a.application_name, a.usename as "user", extract(epoch from clock_timestamp() - a.xact_start)::double precision as seconds,
    count(distinct h.lane)::integer as lanes, min(l.tenant_id) as tenant
from tenantry.outbox_horizon() h
left join pg_stat_activity a on a.pid = h.pid
left join tenantry.outbox_lanes l on l.id = h.lane
where h.lane is not null
group by h.pid, a.application_name, a.usename, a.xact_start
having h.pid is null or a.xact_start < clock_timestamp() - make_interval(secs => %(seconds)s)
