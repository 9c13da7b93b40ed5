-- Another application's is left as it is, unless nobody has served it for a while.
with there as (
    select 1 from tenantry.subscriptions
    where service = %(service)s and app <> %(app)s and seen_at >= now() - interval '30 seconds'
), registered as (
    insert into tenantry.subscriptions as s (service, app, channel, types, handling_order, after_last_retry, parts)
    select %(service)s, %(app)s, %(channel)s, %(types)s, %(order)s, %(after_last_retry)s, %(parts)s
    where not exists (select from there)
    on conflict (service) do update
    set app = excluded.app, channel = excluded.channel, types = excluded.types, parts = excluded.parts,
        handling_order = excluded.handling_order, after_last_retry = excluded.after_last_retry, seen_at = now()
    returning app, created_at
)
select app, created_at from registered
union all
select s.app, s.created_at from tenantry.subscriptions s where s.service = %(service)s and exists (select from there)
