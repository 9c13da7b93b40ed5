select p.name, p.limits, (select count(*) from tenantry.tenants t where t.plan = p.name) as tenants
from tenantry.plans p
order by p.name
