update tenantry.push_endpoints
set url = %(url)s, types = %(types)s, "order" = %(order)s, max_in_flight = %(max_in_flight)s,
    timeout_seconds = %(timeout_seconds)s, retries = %(retries)s, revision = default, updated_at = now()
where id = %(id)s
returning *
