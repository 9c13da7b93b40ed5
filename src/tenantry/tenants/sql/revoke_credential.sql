update tenantry.credentials
set revoked_at = now()
where tenant_id = %(tenant_id)s and id = %(id)s and revoked_at is null
returning *
