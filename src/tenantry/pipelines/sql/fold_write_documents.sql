-- Answers with those that somebody else has changed since they were loaded, and which are not written.
with wanted as materialized (
    select w.lane, w.tenant_id, w.generation, w.id, w.channel, w.document::jsonb, w.sequence, w.expected
    from unnest(
        %(lanes)s::integer[], %(tenants)s::text[], %(generations)s::integer[], %(ids)s::text[], %(channels)s::text[],
        %(documents)s::text[], %(sequences)s::bigint[], %(expected)s::bigint[]
    ) as w (lane, tenant_id, generation, id, channel, document, sequence, expected)
),
changed as (
    update tenantry.documents d
    set document = w.document, sequence = w.sequence, updated_at = now()
    from wanted w
    where d.tenant_id = w.tenant_id and d.projection = %(projection)s and d.generation = w.generation and d.id = w.id
        and d.channel = w.channel and d.sequence = w.expected
    returning w.lane, w.id
),
made as (
    insert into tenantry.documents (tenant_id, projection, generation, id, channel, document, sequence)
    select w.tenant_id, %(projection)s, w.generation, w.id, w.channel, w.document, w.sequence
    from wanted w
    where w.expected is null
    on conflict do nothing
    returning tenant_id, channel, id
)
select w.lane, w.id, w.expected
from wanted w
where not exists (select from changed c where c.lane = w.lane and c.id = w.id)
    and not exists (select from made m where m.tenant_id = w.tenant_id and m.channel = w.channel and m.id = w.id)
