insert into tenantry.webhook_deliveries (id) values (%(id)s)
