-- Two, to tell whether the beginning of an id is enough.
select id, kind, service, tenant_id, request, state, done, failed, total, problem, asked_by, asked_at, updated_at
from tenantry.subscription_jobs
where id between %(first)s and %(last)s and (%(tenant)s::text is null or tenant_id = %(tenant)s)
limit 2
