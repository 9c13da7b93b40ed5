select tenant_id, type, revision from tenantry.event_schemas
