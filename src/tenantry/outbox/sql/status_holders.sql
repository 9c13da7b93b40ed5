select h.pid, a.application_name, a.usename as role, a.state, a.xact_start as began_at,
    bool_or(h.lane = 736800000) as holds_every_lane,
    coalesce(array_agg(l.tenant_id || '/' || l.channel order by l.tenant_id, l.channel) filter (where l.id is not null), '{}') as lanes
from tenantry.outbox_horizon() h
left join tenantry.outbox_lanes l on l.id = h.lane
left join pg_stat_activity a on a.pid = h.pid
where h.lane is not null and (%(tenant)s::text is null or h.lane = 736800000 or l.tenant_id = %(tenant)s)
group by h.pid, a.application_name, a.usename, a.state, a.xact_start
order by a.xact_start nulls first, h.pid
