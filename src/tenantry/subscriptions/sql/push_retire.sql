update tenantry.push_endpoints
set state = 'disabled', state_reason = %(reason)s, revision = default, updated_at = now()
where id = %(id)s and url = %(url)s and state = 'active'
returning *
