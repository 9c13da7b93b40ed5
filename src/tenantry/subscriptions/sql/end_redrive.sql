update tenantry.subscription_jobs
set state = 'done', updated_at = now()
where id = %(job)s and state = 'running' and not exists (select from tenantry.dead_letters where job = %(job)s)
