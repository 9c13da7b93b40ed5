-- What was emitted before a lane was erased, and committed after that.
with swept as (
    delete from tenantry.outbox o using tenantry.outbox_erased_lanes e where o.lane = e.lane
)
delete from tenantry.outbox_erased_lanes where ticket <= %(horizon)s and lane <> all (%(held)s::integer[])
