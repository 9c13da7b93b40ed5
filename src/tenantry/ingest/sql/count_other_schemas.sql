select count(*) as others from tenantry.event_schemas where tenant_id = %(tenant)s and type <> %(type)s
