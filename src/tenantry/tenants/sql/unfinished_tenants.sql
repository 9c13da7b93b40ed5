select id
from tenantry.tenants t
where provisioned < revision
  and retry_at <= now()
union
select tenant_id
from tenantry.moves
where finished_at is null
limit %(limit)s
