"""The commands and what each is for. Kept free of everything that takes time to import."""

from __future__ import annotations

from cyclopts import App, Group, Parameter

RUN = Group("Run", sort_key=1)
TENANTS = Group("Tenants", sort_key=2)
EVENTS = Group("Events", sort_key=3)
INSPECT = Group("Look inside", sort_key=4)


def _shown_default(value: object) -> str | None:
    """What a flag is without being given; that it is off, or empty, goes without saying."""
    return str(value) if value else None


app = App(
    name="tenantry",
    help="Event pipelines for many tenants on one platform: no tenant can slow, read or lose another's events.",
    version_flags=["--version"],
    default_parameter=Parameter(negative=(), show_default=_shown_default),
)
app.command(
    "tenantry.cli.up:up", group=RUN, help="Run the whole platform on this machine, with embedded servers by default."
)
app.command(
    "tenantry.cli.migrate:migrate",
    group=RUN,
    help="Bring the database schema up to date. Safe to run at any time, and from several places at once.",
)
serve = App(name="serve", group=RUN, help="One role in a process of its own, for production.")
serve.command("tenantry.cli.serve:api", help="Serve the HTTP API, and look after tenants.")
serve.command("tenantry.cli.serve:relay", help="Carry what is emitted to the tenants' streams.")
serve.command("tenantry.cli.serve:worker", help="Hand events to the application's subscribers.")
serve.command("tenantry.cli.serve:pipeline", help="Turn events into tables and documents, on Spark.")
app.command(serve)
app.command("tenantry.cli.doctor:doctor", group=INSPECT, help="Check this machine and the servers, a line each.")
app.command(
    "tenantry.cli.bench:bench",
    group=INSPECT,
    help="Measure against the usual way of doing it, in one run. Without a name: list the benchmarks.",
)

tenant = App(name="tenant", group=TENANTS, help="Tenants: create, change, look at, move, suspend and erase them.")
tenant.command("tenantry.cli.tenant:create", help="Create a tenant or change it, or many with --file.")
tenant.command("tenantry.cli.tenant:set_", name="set", help="Change a tenant that exists.")
tenant.command("tenantry.cli.tenant:list_tenants", name="list", help="List the tenants.")
tenant.command("tenantry.cli.tenant_show:show", help="Show a tenant: limits, channels and where they are.")
tenant.command("tenantry.cli.tenant_move:move", help="Move a tenant to a tier above, while it goes on publishing.")
tenant.command("tenantry.cli.tenant:suspend", help="Cut publishing and consumption at once, and keep the data.")
tenant.command("tenantry.cli.tenant:resume", help="Let a suspended tenant publish and consume again.")
tenant.command("tenantry.cli.tenant:delete", help="Erase a tenant and all that it has. Asks first.")
tenant.command("tenantry.cli.tenant_drift:drift", help="Compare the servers with what is wanted, and repair them.")
tenant.command("tenantry.cli.credential:issue", name="creds", help="Issue a credential; the same as `creds issue`.")
app.command(tenant)

creds = App(name="creds", group=TENANTS, help="Credentials with which tenants connect to NATS.")
creds.command("tenantry.cli.credential:issue", help="Issue a credential: a .creds file, shown once.")
creds.command("tenantry.cli.credential:list_credentials", name="list", help="List a tenant's credentials.")
creds.command("tenantry.cli.credential:revoke", help="Lock a credential's user out, at once and for good.")
creds.command("tenantry.cli.credential:rotate", help="Issue a new credential in place of another.")
app.command(creds)

plan = App(name="plan", group=TENANTS, help="Plans: named limits for tenants.")
plan.command("tenantry.cli.plan:list_plans", name="list", help="List the plans.")
plan.command("tenantry.cli.plan:show", help="Show all limits of a plan.")
plan.command("tenantry.cli.plan:set_plan", name="set", help="Create a plan or change it; its tenants follow.")
plan.command("tenantry.cli.plan:delete", help="Delete a plan that no tenant is on.")
app.command(plan)

key = App(name="key", group=TENANTS, help="Keys for the HTTP API.")
key.command("tenantry.cli.key:create", help="Create a key. It alone is printed, once.")
key.command("tenantry.cli.key:list_keys", name="list", help="List the keys, without their secrets.")
key.command("tenantry.cli.key:revoke", help="Refuse a key from now on.")
app.command(key)

accounts = App(name="accounts", group=TENANTS, help="Streams that others consume or provision, as folders.")
accounts.command("tenantry.cli.accounts:check", help="Check folders, and whether NATS has what they name.")
accounts.command("tenantry.cli.accounts:export", help="Write tenants as folders for another system to consume.")
app.command(accounts)

app.command("tenantry.cli.emit:emit", group=EVENTS, help="Emit an event, or many with --file, through the outbox.")
app.command("tenantry.cli.tail:tail", group=EVENTS, help="Show events as they are published, until Ctrl-C.")
outbox = App(name="outbox", group=EVENTS, help="The outbox: what waits to be published, and what was.")
outbox.command("tenantry.cli.outbox:status", help="Show what waits, lane by lane, and what holds it back.")
outbox.command("tenantry.cli.outbox:list_events", name="events", help="List what a tenant's events have become.")
app.command(outbox)

endpoint = App(name="endpoint", group=EVENTS, help="Endpoints: URLs that events are delivered to, signed.")
endpoint.command("tenantry.cli.endpoint:create", help="Deliver a tenant's events to a URL.")
endpoint.command("tenantry.cli.endpoint:list_endpoints", name="list", help="List a tenant's endpoints.")
endpoint.command("tenantry.cli.endpoint:show", help="Show an endpoint, and why it is disabled if it is.")
endpoint.command("tenantry.cli.endpoint:set_", name="set", help="Change an endpoint.")
endpoint.command("tenantry.cli.endpoint:rotate", help="Sign with a new secret, and for a while with both.")
endpoint.command("tenantry.cli.endpoint:secret", help="Print the secret that a receiver verifies with.")
endpoint.command("tenantry.cli.endpoint:enable", help="Deliver to a disabled endpoint again.")
endpoint.command("tenantry.cli.endpoint:disable", help="Deliver nothing to an endpoint until it is enabled again.")
endpoint.command("tenantry.cli.endpoint:delete", help="Delete an endpoint, and its secret with it.")
endpoint.command("tenantry.cli.endpoint_ping:ping", name="test", help="Deliver a signed ping now, once.")
app.command(endpoint)

table = App(name="table", group=EVENTS, help="The tables that pipelines make of events.")
table.command("tenantry.cli.table:list_tables", name="list", help="List the tables, and how large they are.")
table.command("tenantry.cli.table:maintain", help="Compact tables now, and remove what is past its time.")
app.command(table)
app.command("tenantry.cli.usage:usage", group=EVENTS, help="Show what pipelines did for tenants: events, bytes, time.")

worker = App(name="worker", group=EVENTS, help="Workers: who is there, how they cope, and some for one tenant alone.")
worker.command("tenantry.cli.worker:list_workers", name="list", help="List the workers, and the jobs of tenants.")
worker.command("tenantry.cli.worker:start", help="Start workers for one tenant alone, in a fleet that runs.")
worker.command("tenantry.cli.worker:stop", help="Stop the workers of a job.")
app.command(worker)

pipeline = App(name="pipeline", group=EVENTS, help="Pipelines: how far they are, parked lanes, replays and rebuilds.")
pipeline.command("tenantry.cli.pipeline:list_pipelines", name="list", help="List the pipelines, and what is parked.")
pipeline.command("tenantry.cli.pipeline:show", help="Show how far a pipeline is on each lane, and why it is parked.")
pipeline.command("tenantry.cli.pipeline:resume", help="Let a parked pipeline go on, in order.")
pipeline.command("tenantry.cli.pipeline:jobs", help="List replays and rebuilds, the newest first.")
pipeline.command("tenantry.cli.pipeline:cancel", help="Cancel a replay or a rebuild.")
app.command(pipeline)
projection = App(name="projection", group=EVENTS, help="Projections: the documents that are made of events.")
projection.command("tenantry.cli.projection:rebuild", help="Make documents anew from all events, then serve those.")
app.command(projection)
app.command(
    "tenantry.cli.replay:replay",
    group=EVENTS,
    help="Give a service a tenant's events again, or fill the tenant's tables again from them.",
)

subscription = App(name="subscription", group=EVENTS, help="Services that handle events, their redrives and replays.")
subscription.command("tenantry.cli.subscription:list_subscriptions", name="list", help="List the services.")
subscription.command("tenantry.cli.subscription:show", help="Show a service, and for whom it is paused.")
subscription.command("tenantry.cli.subscription:delete", help="Forget a service and how far it is. Asks first.")
subscription.command("tenantry.cli.subscription:jobs", help="List redrives and replays, the newest first.")
subscription.command("tenantry.cli.subscription:cancel", help="Cancel a redrive or a replay.")
app.command(subscription)
app.command("tenantry.cli.lag:lag", group=EVENTS, help="Show how far services are behind with each tenant's events.")
app.command("tenantry.cli.pause:pause", group=EVENTS, help="Stop a service from handling a tenant's events.")
app.command("tenantry.cli.pause:resume", group=EVENTS, help="Let a paused service go on with a tenant's events.")
dlq = App(name="dlq", group=EVENTS, help="Dead letters: events that could not be handled.")
dlq.command("tenantry.cli.dead_letter:list_letters", name="list", help="List them, the newest first.")
dlq.command("tenantry.cli.dead_letter:show", help="Show one whole: reason, traceback, headers, payload.")
dlq.command("tenantry.cli.dead_letter_acts:redrive", help="Have them handled again, in order. Asks first.")
dlq.command("tenantry.cli.dead_letter_acts:discard", help="Do away with them for good. Asks first.")
app.command(dlq)

audit = App(name="audit", group=INSPECT, help="The audit log: who did what to which tenant, sealed.")
audit.command("tenantry.cli.audit:list_entries", name="list", help="List what was done, the newest first.")
audit.command("tenantry.cli.audit:verify", help="Check that the log is what was written.")
app.command(audit)

config = App(name="config", group=INSPECT, help="The settings and where they come from.")
config.command("tenantry.cli.config:show", help="Show every setting, its value and where it came from.")
app.command(config)
