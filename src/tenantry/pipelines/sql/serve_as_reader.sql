set local role tenantry_reader
