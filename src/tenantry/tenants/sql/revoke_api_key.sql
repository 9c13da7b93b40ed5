update tenantry.api_keys
set revoked_at = now()
where id = %(id)s and revoked_at is null
returning *
