-- Lateral, so that no more than a page is read, in the order of the index.
select d.id, d.projection, d.generation, d.document::text, d.sequence, d.updated_at
from unnest(%(channels)s::text[], %(generations)s::integer[]) as s (channel, generation)
cross join lateral (
    select *
    from tenantry.documents
    where tenant_id = %(tenant)s and projection = %(projection)s and generation = s.generation
        and (%(after)s::text is null or id > %(after)s)
        and channel = s.channel and document is not null
    order by id
    limit %(limit)s
) as d
order by d.id
limit %(limit)s
