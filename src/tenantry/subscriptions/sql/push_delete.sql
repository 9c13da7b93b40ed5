delete from tenantry.push_endpoints where id = %(id)s
