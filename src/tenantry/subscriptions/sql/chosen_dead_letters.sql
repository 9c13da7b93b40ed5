-- What a filter names and nobody is at yet. Of a key that is held back, what came before is handled before; to be rid of
-- an event, none before it has to go.
with named as (
    select * from {{matching_dead_letters}} as m where job is null and (%(kind)s = 'discard' or service <> 'pipelines')
),
heads as (
    select service, tenant_id, owner_id, channel, part, key, max(sequence) as sequence
    from named
    where state in ('parked', 'held') and %(kind)s = 'redrive'
    group by service, tenant_id, owner_id, channel, part, key
)
select id, service, tenant_id, owner_id, reason, true as is_named from named
union all
select d.id, d.service, d.tenant_id, d.owner_id, d.reason, false
from heads as h
join tenantry.dead_letters as d
    on d.service = h.service and d.tenant_id = h.tenant_id and d.part = h.part and d.channel = h.channel
    and d.owner_id is not distinct from h.owner_id and d.key is not distinct from h.key and d.sequence < h.sequence
where d.state in ('parked', 'held') and d.job is null and not exists (select from named as n where n.id = d.id)
