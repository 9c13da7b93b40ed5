select w.lane, d.id, d.channel, d.sequence, d.document::text
from unnest(%(lanes)s::integer[], %(tenants)s::text[], %(generations)s::integer[], %(ids)s::text[])
    as w (lane, tenant_id, generation, id)
join tenantry.documents d
    on d.tenant_id = w.tenant_id and d.projection = %(projection)s and d.generation = w.generation and d.id = w.id
