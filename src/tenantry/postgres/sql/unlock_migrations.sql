select pg_advisory_unlock(%(lock)s)
