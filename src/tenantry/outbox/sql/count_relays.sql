select count(*) as relays
from pg_locks
where locktype = 'advisory' and classid = 7374 and objsubid = 2
and database = (select oid from pg_database where datname = current_database())
