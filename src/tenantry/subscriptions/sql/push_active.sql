select e.*
from tenantry.push_endpoints e
join tenantry.tenants t on t.id = e.tenant_id
where e.state = 'active' and t.status = 'active'
order by e.tenant_id, e.name
