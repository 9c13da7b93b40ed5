select t.tenant_id, t.tenant_uid, t.name, t.location, t.rows, t.bytes, t.files, t.version, t.maintained_at, t.erased_at
from tenantry.lake_tables t join tenantry.tenants n on n.uid = t.tenant_uid
where (%(tenant)s::text is null or t.tenant_id = %(tenant)s) and (%(name)s::text is null or t.name = %(name)s)
order by t.tenant_id, t.name
