select to_regclass('tenantry.migrations') is not null as present
