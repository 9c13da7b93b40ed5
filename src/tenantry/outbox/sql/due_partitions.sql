-- The partitions of the next hours.
select tenantry.outbox_partition(h, h + %(length)s)
from generate_series(
    date_bin(%(length)s, now(), 'epoch'::timestamptz), now() + %(ahead)s, %(length)s
) h
