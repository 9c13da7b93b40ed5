select exists (select from tenantry.webhook_deliveries where id = %(id)s) as is_duplicate,
       exists (
           select from tenantry.webhook_deliveries where account = %(account)s and happened_at > %(happened_at)s
       ) as is_outdated
