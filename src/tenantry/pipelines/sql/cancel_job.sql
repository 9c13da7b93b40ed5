-- What nobody has begun is over at once.
update tenantry.pipeline_jobs
set state = case state when 'waiting' then 'cancelled' else 'cancelling' end, updated_at = now()
where id = %(id)s and state in ('waiting', 'running', 'cancelling')
returning id, kind, pipeline, tenant_id, request, state, done, total, problem, asked_by, asked_at, updated_at
