select number, at, actor, act, tenant_id, before, after, previous, mac
from tenantry.audit
where (%(tenant_id)s::text is null or tenant_id = %(tenant_id)s)
  and (%(before_number)s::bigint is null or number < %(before_number)s)
order by number desc
limit %(limit)s
