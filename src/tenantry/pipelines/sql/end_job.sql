update tenantry.pipeline_jobs
set state = %(state)s, problem = %(problem)s, updated_at = now()
where id = %(id)s and state in ('running', 'cancelling')
