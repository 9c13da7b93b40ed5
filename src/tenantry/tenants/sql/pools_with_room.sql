select p.number, count(c.name) as lanes
from tenantry.pools p
left join tenantry.channels c on c.pool = p.number
where p.retention = %(retention)s
group by p.number
having count(c.name) < %(most)s
order by p.number
limit 1
