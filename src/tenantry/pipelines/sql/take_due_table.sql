-- Whoever waited for a day comes first, then the tables of tenants that have written most since.
with due as (
    select t.location
    from tenantry.lake_tables t
    join tenantry.tenants n on n.uid = t.tenant_uid
    left join lateral (
        select sum(u.stored_bytes) as bytes
        from tenantry.usage u
        where u.tenant_id = t.tenant_id and u.minute >= date_trunc('minute', coalesce(t.maintained_at, t.created_at))
    ) grown on true
    where t.maintained_at is null or t.maintained_at < now() - %(every)s
    order by coalesce(t.maintained_at, t.created_at) < now() - interval '1 day' desc, grown.bytes desc nulls last, t.maintained_at
    limit 1
    for update of t skip locked
)
update tenantry.lake_tables t
set maintained_at = now()
from due
where t.location = due.location
returning t.tenant_id, t.tenant_uid, t.name, t.location, t.rows, t.bytes, t.files, t.version, t.maintained_at, t.erased_at
