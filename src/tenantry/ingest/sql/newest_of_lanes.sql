select wanted.lane, newest.ticket, newest.id
from unnest(%(lanes)s::integer[]) wanted (lane)
cross join lateral (
    select o.ticket, o.id from tenantry.outbox o where o.lane = wanted.lane order by o.ticket desc, o.id desc limit 1
) newest
