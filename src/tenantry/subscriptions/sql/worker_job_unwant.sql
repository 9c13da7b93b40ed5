update tenantry.worker_jobs
set state = case state when 'waiting' then 'stopped' else 'stopping' end, updated_at = now()
where origin = 'plan' and app = %(app)s and state in ('waiting', 'running', 'failed') and tenant_id <> all (%(tenants)s)
