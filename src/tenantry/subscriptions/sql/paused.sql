select service, tenant_id from tenantry.subscription_pauses
