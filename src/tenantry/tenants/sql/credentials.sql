select * from tenantry.credentials where tenant_id = %(tenant_id)s order by issued_at, id
