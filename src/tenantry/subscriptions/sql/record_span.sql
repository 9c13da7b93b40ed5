update tenantry.subscription_jobs
set progress = jsonb_set(progress, array[%(part)s], %(span)s), updated_at = now()
where id = %(id)s and state in ('running', 'cancelling')
