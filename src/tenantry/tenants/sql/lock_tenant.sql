select pg_advisory_xact_lock(7368, hashtext(%(id)s))
