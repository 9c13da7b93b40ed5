update tenantry.push_endpoints
set state = %(state)s, state_reason = %(reason)s, revision = default, updated_at = now()
where id = %(id)s
returning *
