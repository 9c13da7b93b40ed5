delete from tenantry.subscriptions where service = %(service)s
