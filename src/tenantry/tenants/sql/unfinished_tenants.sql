select id
from (
    select id, retry_at from tenantry.tenants where provisioned < revision
    union all
    select tenant_id, retry_at from tenantry.moves where finished_at is null
) unfinished
where retry_at <= now()
group by id
order by min(retry_at)
limit %(limit)s
