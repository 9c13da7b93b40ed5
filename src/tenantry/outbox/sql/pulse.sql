select last_value as ticket from tenantry.outbox_tickets
