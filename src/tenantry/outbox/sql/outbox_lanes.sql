select tenant_id, channel, tenant_uid, is_open, is_suspended, payload from tenantry.outbox_lanes
