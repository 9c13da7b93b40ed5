update tenantry.push_endpoints
set secret_version = secret_version + 1,
    previous_secret_until = case when %(overlap)s > 0 then now() + make_interval(secs => %(overlap)s) end,
    revision = default, updated_at = now()
where id = %(id)s
returning *
