select id from tenantry.webhook_deliveries where id = %(id)s
