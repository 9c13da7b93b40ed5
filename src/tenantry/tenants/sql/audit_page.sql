select number, at, actor, act, tenant_id, before, after, previous, mac
from tenantry.audit
where number > %(after_number)s
order by number
limit %(limit)s
