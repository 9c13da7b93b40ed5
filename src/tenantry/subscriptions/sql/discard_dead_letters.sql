-- Only those that nothing waits for: what holds others back is for whoever holds the lane.
delete from tenantry.dead_letters as d
using {{chosen_dead_letters}} as c
where d.id = c.id and d.job is null and d.state = 'dead'
