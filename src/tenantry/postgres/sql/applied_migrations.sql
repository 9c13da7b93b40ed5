select version, checksum from tenantry.migrations order by version
