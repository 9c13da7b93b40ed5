update tenantry.outbox_cursors c
set ticket = coalesce((select min(o.ticket) - 1 from tenantry.outbox o where o.lane = c.lane and o.ticket > %(after)s), c.ticket), id = 0
