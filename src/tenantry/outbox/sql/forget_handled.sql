-- A part at a time: what is left is for the next round.
delete from tenantry.handled
where ctid = any (array(
    select ctid from tenantry.handled where handled_at < now() - make_interval(secs => %(keep)s) limit 50000
))
