insert into tenantry.moves (tenant_id, from_tier, to_tier, lanes)
values (%(tenant_id)s, %(from_tier)s, %(to_tier)s, %(lanes)s)
returning *
