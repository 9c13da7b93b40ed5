select *
from tenantry.whole_tenants
where id > %(after)s
  and (%(status)s::text is null or status = %(status)s)
  and (%(plan)s::text is null or plan = %(plan)s)
  and (%(tier)s::text is null or tier = %(tier)s)
order by id
limit %(limit)s
