select number, mac from tenantry.audit_head for update
