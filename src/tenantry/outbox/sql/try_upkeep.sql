select pg_try_advisory_lock(7375, 0) as done
