select s.service, s.app, s.channel, s.types, s.handling_order, s.after_last_retry, s.parts, s.created_at, s.seen_at,
    (
        select count(*)
        from tenantry.dead_letters d
        where d.service = s.service and (%(owner)s::text is null or d.owner_id = %(owner)s)
    ) as dead_letters
from tenantry.subscriptions s
where %(service)s::text is null or s.service = %(service)s
order by s.service
