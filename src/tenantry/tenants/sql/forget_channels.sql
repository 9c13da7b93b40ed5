delete from tenantry.channels where tenant_id = %(id)s and name = any(%(names)s) and removing
