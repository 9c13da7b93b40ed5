update tenantry.outbox_cursors
set attempts = %(attempts)s, retry_at = clock_timestamp() + make_interval(secs => %(seconds)s), last_error = %(error)s
where lane = %(lane)s and holder = %(holder)s
