select tenant_id, type, schema, revision, updated_at from tenantry.event_schemas where revision = any (%(revisions)s)
