-- Whatever was put into a partition before the floor was raised to its end has a ticket by now.
update tenantry.outbox_partitions
set last_ticket = pg_sequence_last_value('tenantry.outbox_tickets')
where last_ticket is null and extract(epoch from ends_at) <= pg_sequence_last_value('tenantry.outbox_floor')
