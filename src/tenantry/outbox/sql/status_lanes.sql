select l.tenant_id, l.channel, l.is_open, least(p.pending, %(most)s) as pending, p.pending > %(most)s as is_more,
    p.oldest, c.attempts, case when c.retry_at > clock_timestamp() then c.retry_at end as retry_at, c.last_error,
    case
        when p.pending = 0 then ''
        when c.last_error <> '' then c.last_error
        when l.is_suspended then 'the tenant is suspended'
        when t.tokens < 1 and t.counted_at > clock_timestamp() - interval '5 seconds' then 'as fast as publish_rate allows'
        else ''
    end as reason,
    (select count(*) from tenantry.outbox_dead_letters d where d.lane = l.id) as dead_letters
from tenantry.outbox_lanes l
join tenantry.outbox_cursors c on c.lane = l.id
left join tenantry.outbox_turns t on t.tenant_id = l.tenant_id
cross join lateral (
    select count(*) as pending, min(o.created_at) as oldest
    from (
        select o.created_at from tenantry.outbox o
        where o.lane = l.id and (o.ticket, o.id) > (c.ticket, c.id) and o.created_at >= c.starts_at
        order by o.ticket, o.id
        limit %(most)s + 1
    ) o
) p
where %(tenant)s::text is null or l.tenant_id = %(tenant)s
order by p.oldest nulls last, l.tenant_id, l.channel
