-- Two, to tell whether the beginning of an id is enough.
select id, tenant_id, app, count, origin, state, host, pids, problem, asked_by, asked_at, updated_at
from tenantry.worker_jobs
where id between %(first)s and %(last)s
limit 2
