insert into tenantry.tenants (id, name, plan, tier, overrides, placement)
values (%(id)s, %(name)s, %(plan)s, %(tier)s, %(overrides)s, %(placement)s)
