insert into tenantry.subscription_jobs (kind, service, request, asked_by)
select %(kind)s, service, %(request)s, %(actor)s
from {{chosen_dead_letters}} as c
group by service
returning id
