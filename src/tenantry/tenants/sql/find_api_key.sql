select * from tenantry.api_keys where id = %(id)s
