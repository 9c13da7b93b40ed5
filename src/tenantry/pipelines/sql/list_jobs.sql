select id, kind, pipeline, tenant_id, request, state, done, total, problem, asked_by, asked_at, updated_at
from tenantry.pipeline_jobs
order by asked_at desc, id
limit %(limit)s
