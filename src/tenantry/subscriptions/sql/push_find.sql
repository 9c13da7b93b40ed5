select * from tenantry.push_endpoints where tenant_id = %(tenant)s and name = %(name)s
