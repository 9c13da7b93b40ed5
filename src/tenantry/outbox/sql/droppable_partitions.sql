select p.name, p.ends_at
from tenantry.outbox_partitions p
where p.last_ticket is not null and p.ends_at < now() - make_interval(secs => %(keep)s)
and not exists (select from tenantry.outbox_cursors c where c.starts_at < p.ends_at)
order by p.starts_at
