select tenant_id, type, schema, revision, updated_at from tenantry.event_schemas where tenant_id = %(tenant)s order by type
