-- By account, and not by id: one that is late must see the newer one that is being handled.
select pg_advisory_xact_lock(7373, hashtext(%(account)s))
