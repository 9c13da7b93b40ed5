select tenant_id, channel, tenant_uid, is_open, payload from tenantry.outbox_lanes
