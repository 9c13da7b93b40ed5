select id, tenant_id, app, count, origin, state, host, pids, problem, asked_by, asked_at, updated_at
from tenantry.worker_jobs
where starts_with(id::text, %(id)s)
limit 2
