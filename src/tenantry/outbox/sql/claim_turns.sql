select tenant_id, tokens, extract(epoch from clock_timestamp() - counted_at)::double precision as age
from tenantry.outbox_turns
where tenant_id = any (%(tenants)s)
order by random()
limit %(limit)s
for update skip locked
