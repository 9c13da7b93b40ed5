-- Tenants before their lanes, as tasks lock them, and whoever deletes one.
with present as materialized (
    select id from tenantry.tenants where id = %(tenant)s for key share
)
select l.sequence
from present p
join tenantry.pipeline_lanes l on l.tenant_id = p.id
where l.pipeline = %(pipeline)s and l.channel = %(channel)s
for update of l
