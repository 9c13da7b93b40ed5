select j.id, j.kind, j.service, j.tenant_id, j.request, j.state, j.progress, s.parts
from tenantry.subscription_jobs j
join tenantry.subscriptions s on s.service = j.service
where j.kind in ('replay', 'rewind') and j.state in ('running', 'cancelling') and j.service = any (%(services)s::text[])
order by j.asked_at
