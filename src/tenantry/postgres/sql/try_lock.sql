select pg_try_advisory_lock(7369, hashtext(%(name)s)) as done
