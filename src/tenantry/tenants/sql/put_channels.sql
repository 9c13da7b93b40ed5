insert into tenantry.channels (tenant_id, name, retention, pool)
select %(id)s, c.name, c.retention, c.pool
from unnest(%(names)s::text[], %(retentions)s::bigint[], %(pools)s::integer[]) as c (name, retention, pool)
on conflict (tenant_id, name) do update
set retention = excluded.retention, pool = excluded.pool, removing = false
