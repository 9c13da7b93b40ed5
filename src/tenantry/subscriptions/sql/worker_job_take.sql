-- Those that nobody has, and those whose fleet has not been heard of for too long.
update tenantry.worker_jobs
set
    state = case state when 'stopping' then state else 'running' end,
    fleet = %(fleet)s,
    host = %(host)s,
    pids = '{}',
    problem = '',
    heartbeat_at = now(),
    updated_at = now()
where id in (
    select id
    from tenantry.worker_jobs
    where app in ('', %(app)s)
        and (
            state = 'waiting'
            or state in ('running', 'failed', 'stopping') and heartbeat_at < now() - make_interval(secs => %(lease)s)
        )
    order by asked_at, id
    for update skip locked
)
returning id, tenant_id, app, count, origin, state, host, pids, problem, asked_by, asked_at, updated_at
