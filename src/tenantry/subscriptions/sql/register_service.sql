-- Another application's is left as it is, unless nobody has served it for a while.
insert into tenantry.subscriptions as s (service, app, channel, types, handling_order, after_last_retry, parts)
values (%(service)s, %(app)s, %(channel)s, %(types)s, %(order)s, %(after_last_retry)s, %(parts)s)
on conflict (service) do update
set app = case when s.app = excluded.app or s.seen_at < now() - interval '30 seconds' then excluded.app else s.app end,
    channel = excluded.channel, types = excluded.types, handling_order = excluded.handling_order,
    after_last_retry = excluded.after_last_retry, parts = excluded.parts,
    seen_at = case when s.app = excluded.app then now() else s.seen_at end
returning app, created_at
