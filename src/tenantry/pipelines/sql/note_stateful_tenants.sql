-- Those of whom the query already keeps state under the same name as somebody else.
with here as (
    select * from unnest(%(tenants)s::text[], %(uids)s::uuid[]) as h (tenant_id, tenant_uid)
), noted as (
    insert into tenantry.stateful_tenants (query, tenant_id, tenant_uid)
    select %(query)s, tenant_id, tenant_uid from here
    on conflict do nothing
)
select s.tenant_id
from here h join tenantry.stateful_tenants s on s.query = %(query)s and s.tenant_id = h.tenant_id and s.tenant_uid <> h.tenant_uid
