select service, tenant_id, reason, count(*) as count
from {{chosen_dead_letters}} as c
group by service, tenant_id, reason
order by count desc, service, tenant_id, reason
limit %(groups)s
