delete from tenantry.subscription_pauses where service = %(service)s and tenant_id = %(tenant)s
