insert into tenantry.pipeline_jobs (kind, pipeline, tenant_id, request, asked_by)
values (%(kind)s, %(pipeline)s, %(tenant)s, %(request)s, %(actor)s)
returning id, kind, pipeline, tenant_id, request, state, done, total, problem, asked_by, asked_at, updated_at
