-- Also those whose last letters went with their tenant.
update tenantry.subscription_jobs j
set state = 'done', updated_at = now()
where j.kind in ('redrive', 'discard') and j.state = 'running'
    and not exists (select from tenantry.dead_letters d where d.job = j.id)
