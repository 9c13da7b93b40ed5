-- Two, to tell whether the beginning of an id is enough.
select id, tenant_id, channel, service, sequence, part, state, subject, event_id, type, key, reason, deliveries, published_at,
    died_at, job, payload, headers, trace, traceback
from tenantry.dead_letters
where id between %(first)s and %(last)s and (%(owner)s::text is null or owner_id = %(owner)s)
limit 2
