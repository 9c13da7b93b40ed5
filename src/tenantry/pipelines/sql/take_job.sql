-- What a process before had begun comes first.
update tenantry.pipeline_jobs
set state = case state when 'waiting' then 'running' else state end, updated_at = now()
where id = (
    select id
    from tenantry.pipeline_jobs
    where state in ('waiting', 'running', 'cancelling')
    order by state = 'waiting', asked_at, id
    limit 1
    for update skip locked
)
returning id, kind, pipeline, tenant_id, request, progress
