select t.id, t.xmin::text || '/' || p.xmin::text as version
from tenantry.tenants t
join tenantry.plans p on p.name = t.plan
