-- Those that are over come last.
select id, tenant_id, app, count, origin, state, host, pids, problem, asked_by, asked_at, updated_at
from tenantry.worker_jobs
order by state = 'stopped', asked_at desc, id
limit %(limit)s
