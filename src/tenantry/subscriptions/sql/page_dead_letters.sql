select id, tenant_id, channel, service, sequence, part, state, subject, event_id, type, key, reason, deliveries, published_at,
    died_at, job
from {{matching_dead_letters}} as m
where %(before)s::timestamptz is null or (died_at, id) < (%(before)s::timestamptz, %(before_id)s::uuid)
order by died_at desc, id desc
limit %(limit)s
