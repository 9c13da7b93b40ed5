delete from tenantry.webhook_deliveries where received_at < now() - %(age)s::interval
