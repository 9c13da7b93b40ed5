select
    case %(by)s
        when 'tenant' then tenant_id
        when 'pipeline' then pipeline
        when 'channel' then channel
        else to_char(minute at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"')
    end as of,
    sum(events)::bigint as events,
    sum(bytes)::bigint as bytes,
    sum(stored_bytes)::bigint as stored_bytes,
    sum(task_seconds) as task_seconds
from tenantry.usage
where minute >= date_trunc('minute', now() - make_interval(secs => %(seconds)s))
    and (%(tenant)s::text is null or tenant_id = %(tenant)s)
    and (%(pipeline)s::text is null or pipeline = %(pipeline)s)
group by 1
order by case when %(by)s = 'minute' then 0 else sum(task_seconds) end desc, 1
