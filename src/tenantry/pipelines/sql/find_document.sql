select d.id, d.projection, d.generation, d.document::text, d.sequence, d.updated_at
from unnest(%(channels)s::text[], %(generations)s::integer[]) as s (channel, generation)
join tenantry.documents d on d.channel = s.channel and d.generation = s.generation
where d.tenant_id = %(tenant)s and d.projection = %(projection)s and d.id = %(id)s and d.document is not null
