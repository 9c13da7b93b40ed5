select id, kind, service, tenant_id, request, state, done, failed, total, problem, asked_by, asked_at, updated_at
from tenantry.subscription_jobs
where (%(tenant)s::text is null or tenant_id = %(tenant)s) and (%(service)s::text is null or service = %(service)s)
order by asked_at desc, id
limit %(limit)s
