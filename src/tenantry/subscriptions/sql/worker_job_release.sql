-- For another fleet to take.
update tenantry.worker_jobs
set
    state = case state when 'stopping' then 'stopped' else 'waiting' end,
    fleet = null,
    host = '',
    pids = '{}',
    problem = '',
    updated_at = now()
where fleet = %(fleet)s and state in ('running', 'failed', 'stopping')
