-- Of a redrive nothing is left to do; a replay ends when its worker has put away what it has.
update tenantry.subscription_jobs
set state = case when kind in ('redrive', 'discard') then 'cancelled' else 'cancelling' end, updated_at = now()
where id = %(id)s and state in ('running', 'cancelling')
returning id, kind, service, tenant_id, request, state, done, failed, total, problem, asked_by, asked_at, updated_at
