-- What nobody has begun is over at once.
update tenantry.worker_jobs
set state = case state when 'waiting' then 'stopped' else 'stopping' end, updated_at = now()
where id = %(id)s and state in ('waiting', 'running', 'failed', 'stopping')
returning id, tenant_id, app, count, origin, state, host, pids, problem, asked_by, asked_at, updated_at
