insert into public.row_flags (event_id, subject, payload)
select
    e.id, 'tenantry.tenants.bench-' || e.tenant || '.events.order.created',
    '{"specversion":"1.0","id":"' || e.id || '","source":"/bench","type":"order.created","tenantid":"bench-' || e.tenant
    || '","data":{"order":' || e.number || ',"note":"' || repeat('x', 100) || '"}}'
from (
    select number, gen_random_uuid()::text as id, number %% %(tenants)s as tenant
    from generate_series(1, %(count)s::integer) number
) e
