select * from tenantry.push_endpoints where tenant_id = %(tenant)s order by name
