-- The sum, and not the highest: a change with a lower revision may be committed later.
select count(*) as endpoints, coalesce(sum(e.revision), 0) as revisions
from tenantry.push_endpoints e
join tenantry.tenants t on t.id = e.tenant_id
where e.state = 'active' and t.status = 'active'
