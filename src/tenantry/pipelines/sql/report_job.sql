update tenantry.pipeline_jobs
set done = %(done)s, total = %(total)s, progress = %(progress)s, updated_at = now()
where id = %(id)s
returning state
