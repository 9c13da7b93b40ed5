select * from tenantry.moves where tenant_id = %(tenant_id)s order by started_at desc limit 1
