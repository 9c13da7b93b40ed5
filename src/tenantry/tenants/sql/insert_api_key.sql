insert into tenantry.api_keys (id, name, secret_hash, tenant_id, scopes, expires_at)
values (%(id)s, %(name)s, %(secret_hash)s, %(tenant_id)s, %(scopes)s, %(expires_at)s)
returning *
