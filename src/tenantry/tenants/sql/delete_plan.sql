delete from tenantry.plans where name = %(name)s
