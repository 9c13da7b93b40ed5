update tenantry.tenants
set provisioned = greatest(provisioned, %(revision)s), problem = '', attempts = 0
where uid = %(uid)s
