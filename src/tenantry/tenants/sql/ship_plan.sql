insert into tenantry.plans (name, limits) values (%(name)s, %(limits)s) on conflict (name) do nothing
