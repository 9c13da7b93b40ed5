select id, kind, pipeline, tenant_id, request, state, done, total, problem, asked_by, asked_at, updated_at
from tenantry.pipeline_jobs
where starts_with(id::text, %(id)s)
order by asked_at desc
limit 2
