delete from tenantry.dead_letters where service = %(service)s
