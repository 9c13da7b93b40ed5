update tenantry.channels set removing = true where tenant_id = %(id)s and name = any(%(names)s)
