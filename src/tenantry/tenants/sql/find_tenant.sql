select * from tenantry.whole_tenants where id = %(id)s
