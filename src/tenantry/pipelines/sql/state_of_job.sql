select state from tenantry.pipeline_jobs where id = %(id)s
