insert into tenantry.webhook_deliveries (id, account, happened_at) values (%(id)s, %(account)s, %(happened_at)s)
