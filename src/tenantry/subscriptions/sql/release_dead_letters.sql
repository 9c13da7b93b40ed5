update tenantry.dead_letters set job = null where job = %(id)s
