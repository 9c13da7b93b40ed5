select pg_advisory_unlock(7369, hashtext(%(name)s)) as done
