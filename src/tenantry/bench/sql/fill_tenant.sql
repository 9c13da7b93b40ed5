select tenantry.outbox_append(
    array_agg(l.id), array_agg(e.id), array_agg('order.created'::text),
    array_agg(
        '{"specversion":"1.0","id":"' || e.id || '","source":"/bench","type":"order.created","tenantid":"' || l.tenant_id
        || '","data":{"note":"' || repeat('x', 100) || '"}}'
    ),
    array_agg('00-' || md5(e.id) || '-' || substr(md5(e.id), 1, 16) || '-01'), array_agg(null::text)
)
from (select gen_random_uuid()::text as id from generate_series(1, %(count)s::integer)) e
join tenantry.outbox_lanes l on l.tenant_id = %(tenant)s and l.channel = 'events'
