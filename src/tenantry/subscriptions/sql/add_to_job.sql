update tenantry.subscription_jobs set total = total + 1, updated_at = now() where id = %(job)s
