select pg_advisory_lock(%(lock)s)
