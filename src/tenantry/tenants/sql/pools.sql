select p.number,
       p.retention,
       coalesce(array_agg(c.tenant_id || '.' || c.name order by c.tenant_id, c.name)
                filter (where c.name is not null and not c.removing and t.status <> 'deleting'
                        and not exists (select from tenantry.moves m
                                        where m.tenant_id = t.id and m.finished_at is null and m.stage <> 'copying')),
                '{}') as lanes
from tenantry.pools p
left join tenantry.channels c on c.pool = p.number
left join tenantry.tenants t on t.id = c.tenant_id
where %(number)s::integer is null or p.number = %(number)s
group by p.number
