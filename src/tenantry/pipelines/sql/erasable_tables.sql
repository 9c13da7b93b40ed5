select t.tenant_id, t.tenant_uid, t.name, t.location, t.rows, t.bytes, t.files, t.version, t.maintained_at, t.erased_at
from tenantry.lake_tables t
where not exists (select from tenantry.tenants n where n.uid = t.tenant_uid)
    and (t.erased_at is null or t.erased_at < now() - %(again)s)
order by t.erased_at nulls first, t.location
