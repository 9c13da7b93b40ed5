delete from tenantry.subscription_jobs where id = any(%(jobs)s) and total is null
