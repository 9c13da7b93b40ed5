select tenantry.outbox_append(
    %(lanes)s::integer[], %(ids)s::text[], %(types)s::text[], %(documents)s::text[], %(traceparents)s::text[], %(tracestates)s::text[]
)
