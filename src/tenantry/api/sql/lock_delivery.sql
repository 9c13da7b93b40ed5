select pg_advisory_xact_lock(7370, hashtext(%(id)s))
