select * from tenantry.moves where tenant_id = %(tenant_id)s and finished_at is null
