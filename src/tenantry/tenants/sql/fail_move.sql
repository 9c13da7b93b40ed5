update tenantry.moves
set problem = %(problem)s,
    attempts = attempts + 1,
    retry_at = now() + least(60, 0.5 * 2 ^ least(attempts, 10)) * (0.5 + random()) * interval '1 second'
where id = %(id)s
