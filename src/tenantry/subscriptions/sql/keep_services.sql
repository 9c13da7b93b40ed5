update tenantry.subscriptions set seen_at = now() where app = %(app)s and service = any (%(services)s::text[])
