"""`tenantry projection rebuild`."""

from __future__ import annotations

from tenantry.cli.job_waiting import do_job
from tenantry.cli.options import DEFAULT, Options
from tenantry.cli.session import actor
from tenantry.pipelines.job_desk import JobDesk


def rebuild(
    name: str,
    /,
    *,
    tenant: str | None = None,
    detach: bool = False,
    json: bool = False,
    options: Options = DEFAULT,
) -> None:
    """Make the documents of a projection anew from all events, aside, and then serve them in place of the old ones.

    The old ones are served, and kept up to date, until then. Ctrl-C cancels it and leaves them.

    Parameters
    ----------
    name
        The projection.
    tenant
        Only this tenant's; nothing of others is touched.
    detach
        Do not wait for it.
    json
        Print one JSON document.
    """
    do_job(options, JobDesk, lambda desk: desk.ask("rebuild", name, tenant, actor()), detach=detach, json=json)
