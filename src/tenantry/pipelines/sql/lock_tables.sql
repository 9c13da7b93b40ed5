lock table tenantry.lake_tables in share row exclusive mode
