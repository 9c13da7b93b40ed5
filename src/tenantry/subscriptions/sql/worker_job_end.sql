update tenantry.worker_jobs
set state = 'stopped', pids = '{}', updated_at = now()
where id = %(id)s and fleet = %(fleet)s
