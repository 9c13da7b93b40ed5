select service, tenant_id, paused_by, paused_at
from tenantry.subscription_pauses
where (%(service)s::text is null or service = %(service)s) and (%(owner)s::text is null or tenant_id = %(owner)s)
order by service, tenant_id
