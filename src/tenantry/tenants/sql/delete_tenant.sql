delete from tenantry.tenants where uid = %(uid)s
