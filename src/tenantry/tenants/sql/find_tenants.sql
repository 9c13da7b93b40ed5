select * from tenantry.whole_tenants where id = any (%(ids)s)
