-- From now on nothing is put into partitions that have ended. The slack keeps the time of most events true.
select setval('tenantry.outbox_floor', greatest(
    max(extract(epoch from ends_at))::bigint, coalesce(pg_sequence_last_value('tenantry.outbox_floor'), 1)
))
from tenantry.outbox_partitions
where ends_at < clock_timestamp() - %(slack)s
having count(*) > 0
