select name, limits from tenantry.plans where name = %(name)s for share
