insert into tenantry.subscription_jobs (kind, service, tenant_id, request, asked_by)
values (%(kind)s, %(service)s, %(tenant)s, %(request)s, %(actor)s)
returning id, kind, service, tenant_id, request, state, done, failed, total, problem, asked_by, asked_at, updated_at
