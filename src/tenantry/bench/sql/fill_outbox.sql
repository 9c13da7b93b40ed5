select tenantry.outbox_append(
    array_agg(l.id), array_agg(e.id), array_agg('order.created'::text),
    array_agg(
        '{"specversion":"1.0","id":"' || e.id || '","source":"/bench","type":"order.created","tenantid":"' || l.tenant_id
        || '","data":{"order":' || e.number || ',"note":"' || repeat('x', 100) || '"}}'
    ),
    array_agg('00-' || md5(e.id) || '-' || substr(md5(e.id), 1, 16) || '-01'), array_agg(null::text)
)
from (
    select number, gen_random_uuid()::text as id, number %% %(tenants)s as tenant
    from generate_series(%(first)s::integer, %(last)s::integer) number
) e
join tenantry.outbox_lanes l on l.tenant_id = 'bench-' || e.tenant and l.channel = 'events'
