select * from tenantry.api_keys order by created_at, id
