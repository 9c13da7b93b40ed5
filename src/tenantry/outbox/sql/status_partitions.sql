select c.relname as name, p.starts_at, p.ends_at, pg_total_relation_size(c.oid) as bytes
from pg_inherits i
join pg_class c on c.oid = i.inhrelid
left join tenantry.outbox_partitions p on p.name = c.relname
where i.inhparent = 'tenantry.outbox'::regclass
order by p.starts_at nulls last
