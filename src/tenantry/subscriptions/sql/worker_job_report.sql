-- None, if it is not this fleet's any more, or its tenant is gone.
update tenantry.worker_jobs
set
    state = case state when 'stopping' then state else %(state)s end,
    pids = %(pids)s::integer[],
    problem = %(problem)s,
    heartbeat_at = now(),
    updated_at = case
        when state in (%(state)s, 'stopping') and pids = %(pids)s::integer[] and problem = %(problem)s then updated_at
        else now()
    end
where id = %(id)s and fleet = %(fleet)s and state in ('running', 'failed', 'stopping')
returning state
