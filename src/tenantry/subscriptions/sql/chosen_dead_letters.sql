-- What a filter names and nobody is at yet. Of a key that is held back, what came before is handled before, and nothing
-- while somebody is at what came before; to be rid of an event, none before it has to go.
with named as (
    select *
    from {{matching_dead_letters}} as m
    where job is null
        and (
            %(kind)s = 'discard'
            or service <> 'pipelines' and not exists (
                select
                from tenantry.dead_letters as b
                where m.state in ('parked', 'held') and b.state in ('parked', 'held') and b.job is not null
                    and b.service = m.service and b.tenant_id = m.tenant_id and b.channel = m.channel and b.part = m.part
                    and b.owner_id is not distinct from m.owner_id and b.key is not distinct from m.key
                    and b.sequence < m.sequence
            )
        )
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
