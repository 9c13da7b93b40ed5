-- Tables that a new tenant of the same name has taken over, by the name of both.
with told as (
    update tenantry.lake_tables set is_erasure_untold = false
    where is_erasure_untold
    returning tenant_id, location
)
select tenant_id, array_agg(location order by location) as locations
from told
group by tenant_id
order by tenant_id
