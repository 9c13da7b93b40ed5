-- What a filter names. By owner it is only what belongs to that tenant; another's account may have the same name.
select *
from tenantry.dead_letters
where (%(owner)s::text is null or owner_id = %(owner)s)
    and (%(tenant)s::text is null or tenant_id = %(tenant)s)
    and (%(service)s::text is null or service = %(service)s)
    and (%(type)s::text is null or type = %(type)s)
    and (%(state)s::text is null or state = %(state)s)
    and (%(key)s::text is null or key = %(key)s)
    and (%(event)s::text is null or event_id = %(event)s)
    and (%(reason)s::text is null or strpos(lower(reason), lower(%(reason)s)) > 0)
    and (%(since)s::timestamptz is null or died_at >= %(since)s)
    and (%(until)s::timestamptz is null or died_at < %(until)s)
    and (%(ids)s::uuid[] is null or id = any(%(ids)s))
