-- Until the end of the transaction. For whom row-level security does not hold, there is a role for whom it does.
select
    set_config('tenantry.tenant', %(tenant)s, true),
    not row_security_active('tenantry.documents') and coalesce(
        (
            select pg_has_role(oid, 'member') and has_table_privilege(oid, 'tenantry.documents', 'select')
            from pg_roles
            where rolname = 'tenantry_reader'
        ),
        false
    ) as needs_role
