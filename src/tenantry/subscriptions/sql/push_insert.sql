insert into tenantry.push_endpoints
    (tenant_id, name, url, channel, types, "order", max_in_flight, timeout_seconds, retries)
values
    (%(tenant)s, %(name)s, %(url)s, %(channel)s, %(types)s, %(order)s, %(max_in_flight)s, %(timeout_seconds)s, %(retries)s)
returning *
