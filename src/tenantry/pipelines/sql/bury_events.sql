insert into tenantry.dead_letters (
    tenant_id, owner_id, channel, service, sequence, subject, payload, reason, trace, published_at
)
select l.tenant_id, l.tenant_id, l.channel, 'pipelines', l.sequence, l.subject, l.payload, l.reason, l.trace, l.published_at
from unnest(
    %(tenants)s::text[], %(channels)s::text[], %(sequences)s::bigint[], %(subjects)s::text[], %(payloads)s::bytea[],
    %(reasons)s::text[], %(traces)s::text[], %(times)s::timestamptz[]
) as l (tenant_id, channel, sequence, subject, payload, reason, trace, published_at)
where exists (select from tenantry.tenants t where t.id = l.tenant_id)
on conflict do nothing
