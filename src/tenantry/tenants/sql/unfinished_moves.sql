select tenant_id from tenantry.moves where finished_at is null
