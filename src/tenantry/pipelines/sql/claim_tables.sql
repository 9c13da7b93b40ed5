-- Which of these places are still somebody else's: a tenant's of the same name that is gone.
with wanted as (
    select * from unnest(%(locations)s::text[], %(tenants)s::text[], %(uids)s::uuid[], %(names)s::text[])
        as w (location, tenant_id, tenant_uid, name)
), claimed as (
    insert into tenantry.lake_tables (location, tenant_id, tenant_uid, name)
    select * from wanted
    on conflict (location) do nothing
)
select w.location
from wanted w join tenantry.lake_tables t on t.location = w.location and t.tenant_uid <> w.tenant_uid
