select tenant_id, channel, is_open, payload from tenantry.outbox_lanes
