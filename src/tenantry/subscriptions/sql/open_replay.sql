select id, kind
from tenantry.subscription_jobs
where service = %(service)s and tenant_id = %(tenant)s and kind in ('replay', 'rewind') and state in ('running', 'cancelling')
limit 1
