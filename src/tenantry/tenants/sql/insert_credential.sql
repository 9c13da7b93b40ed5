insert into tenantry.credentials (tenant_id, name, kind, consumer, channel, user_key, expires_at)
values (%(tenant_id)s, %(name)s, %(kind)s, %(consumer)s, %(channel)s, %(user_key)s, %(expires_at)s)
returning *
