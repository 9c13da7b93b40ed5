-- The first time is what counts.
with marked as (
    update tenantry.lake_tables set erased_at = now()
    where location = %(location)s and erased_at is null
    returning location
)
select array_agg(t.location order by t.location) as locations,
    bool_and(t.erased_at is not null or t.location = m.location) as is_all
from marked m join tenantry.lake_tables t on t.tenant_uid = %(uid)s
