delete from tenantry.subscription_pauses where service = %(service)s
