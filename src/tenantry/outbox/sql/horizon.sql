select lane, ticket, pid from tenantry.outbox_horizon()
