insert into tenantry.event_schemas (tenant_id, type, schema)
values (%(tenant)s, %(type)s, %(schema)s)
on conflict (tenant_id, type) do update set schema = excluded.schema, revision = default, updated_at = now()
returning tenant_id, type, schema, revision, updated_at, (xmax = 0) as is_new
