insert into tenantry.worker_jobs (tenant_id, app, count, asked_by)
values (%(tenant)s, %(app)s, %(count)s, %(actor)s)
returning id, tenant_id, app, count, origin, state, host, pids, problem, asked_by, asked_at, updated_at
