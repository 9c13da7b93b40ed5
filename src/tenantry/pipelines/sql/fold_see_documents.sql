select set_config('tenantry.tenant', '*', true)
