update tenantry.subscription_jobs
set state = 'cancelled', problem = 'the service was deleted', updated_at = now()
where service = %(service)s and state in ('running', 'cancelling')
