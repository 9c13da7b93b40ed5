select pg_advisory_lock_shared(7374, 0)
