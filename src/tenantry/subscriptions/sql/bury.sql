insert into tenantry.dead_letters as d (
    tenant_id, owner_id, channel, service, part, sequence, subject, payload, headers, reason, traceback, deliveries,
    event_id, type, key, trace, state, published_at, job
)
values (
    %(tenant)s, (select id from tenantry.tenants where id = %(tenant)s and %(is_ours)s), %(channel)s, %(service)s, %(part)s, %(sequence)s,
    %(subject)s, %(payload)s, %(headers)s, %(reason)s, %(traceback)s, %(deliveries)s,
    %(event_id)s, %(type)s, %(key)s, %(trace)s, %(state)s, %(published_at)s, %(job)s
)
on conflict (tenant_id, channel, service, part, sequence, published_at) do update
set reason = excluded.reason, traceback = excluded.traceback, deliveries = excluded.deliveries, died_at = now(),
    state = excluded.state, key = excluded.key, job = excluded.job
