"""Workers over HTTP: who is there, how many there should be, and some for one tenant alone."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import yaml

from tenantry.application import Context, Event, Tenantry
from tests.api.conftest import Api
from tests.subscriptions.working import Working, until

KEDA = Path(__file__).parents[2] / "deploy" / "keda"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "scaling.md"


def shop(holding: asyncio.Event) -> Tenantry:
    app = Tenantry("shop")

    @app.subscriber("orders", types=["order.*"])
    async def handle(event: Event[int], context: Context) -> None:
        await holding.wait()

    return app


async def test_workers_are_listed_while_they_are_there(api: Api, admin: httpx.AsyncClient) -> None:
    assert (await admin.get("/v1/workers")).json() == {"workers": []}
    working, holding = Working(api.administration), asyncio.Event()
    await working.tenant("acme")
    async with working.worker(shop(holding), plans=frozenset({"pro"})) as worker:
        holding.set()

        async def is_listed() -> bool:
            return bool((await admin.get("/v1/workers")).json()["workers"])

        await until(is_listed)
        (found,) = (await admin.get("/v1/workers")).json()["workers"]
        assert (found["id"], found["app"], found["services"]) == (worker.id, "shop", ["orders"])
        assert (found["tenants"], found["plans"], found["is_leaving"]) == ([], ["pro"], False)
        assert found["load"]["slots"] == 200
        assert 0 <= found["age_seconds"] < 60

    async def is_gone() -> bool:
        return not (await admin.get("/v1/workers")).json()["workers"]

    await until(is_gone)


async def test_more_workers_are_wanted_while_events_wait(api: Api, admin: httpx.AsyncClient) -> None:
    working, holding = Working(api.administration), asyncio.Event()
    for name in ("acme", "globex"):
        await working.tenant(name)

    async def scale(**parameters: Any) -> dict[str, Any]:
        asked: dict[str, Any] = {"app": "shop", "min": 1, "max": 8} | parameters
        answer = await admin.get("/v1/workers/scale", params=asked)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    nobody = await scale(min=2)
    assert nobody == {"wanted": 2, "workers": 0, "lag": 0, "events_per_second": 0, "seconds_per_event": None}
    async with working.worker(shop(holding)):
        for name in ("acme", "globex"):
            await working.publish(name, 20)

        async def is_wanted() -> bool:
            return bool((await scale())["wanted"] == 2)

        await until(is_wanted)
        found = await scale()
        assert (found["workers"], found["lag"]) == (1, 40)
        assert (await scale(max=1))["wanted"] == 1
        assert (await scale(app="billing"))["workers"] == 0
        assert (await scale(plan="pro"))["workers"] == 0
        holding.set()

        async def is_known() -> bool:
            return (await scale())["seconds_per_event"] is not None

        await until(is_known)


async def test_the_page_about_scaling_shows_what_is_answered(admin: httpx.AsyncClient) -> None:
    path, shown = re.findall(r"GET (/v1/workers/scale\?\S+)\n\n(\{.*\})", PAGE.read_text())[0]
    assert json.loads(shown).keys() == (await admin.get(path)).json().keys()


async def test_a_question_that_makes_no_sense_is_refused(admin: httpx.AsyncClient) -> None:
    for parameters in ({"min": "1"}, {"app": "shop", "min": "0"}, {"app": "shop", "maximum": "8"}):
        assert (await admin.get("/v1/workers/scale", params=parameters)).status_code == 422
    crossed = await admin.get("/v1/workers/scale", params={"app": "shop", "min": 3, "max": 2})
    assert crossed.status_code == 422
    assert "expected max to be at least min" in crossed.json()["detail"]


async def test_a_job_is_asked_for_seen_and_stopped(api: Api, admin: httpx.AsyncClient) -> None:
    await Working(api.administration).tenant("acme")
    asked = await admin.post("/v1/jobs", json={"tenant": "acme", "count": 2})
    assert asked.status_code == 201
    job = asked.json()
    assert (job["tenant_id"], job["count"], job["state"], job["pids"]) == ("acme", 2, "waiting", [])
    assert (await admin.get(asked.headers["Location"])).json() == job
    assert (await admin.get("/v1/jobs")).json() == {"jobs": [job]}
    stopped = await admin.delete(f"/v1/jobs/{job['id']}")
    assert (stopped.status_code, stopped.json()["state"]) == (202, "stopped")
    assert (await admin.delete(f"/v1/jobs/{job['id']}")).status_code == 409


async def test_jobs_that_make_no_sense_are_refused(admin: httpx.AsyncClient) -> None:
    for wanted, status in (
        ({"tenant": "nobody"}, 404),
        ({"tenant": "Ä"}, 422),
        ({"count": 1}, 422),
        ({"tenant": "acme", "count": 0}, 422),
        ({"tenant": "acme", "state": "running"}, 422),
    ):
        assert (await admin.post("/v1/jobs", json=wanted)).status_code == status, wanted
    assert (await admin.get("/v1/jobs/00000000-0000-0000-0000-000000000000")).status_code == 404
    assert (await admin.get("/v1/jobs/acme")).status_code == 422


async def test_workers_are_the_platforms_to_see_and_to_start(api: Api) -> None:
    await Working(api.administration).tenant("acme")
    reader, own = await api.client("workers:read"), await api.client("*", tenant="acme")
    other = await api.client("tenants:write")
    assert (await reader.get("/v1/workers")).status_code == 200
    assert (await reader.get("/v1/jobs")).status_code == 200
    assert (await reader.post("/v1/jobs", json={"tenant": "acme"})).status_code == 403
    for caller in (own, other):
        for path in ("/v1/workers", "/v1/workers/scale?app=shop", "/v1/jobs"):
            assert (await caller.get(path)).status_code == 403
        assert (await caller.post("/v1/jobs", json={"tenant": "acme"})).status_code == 403


async def test_the_example_for_keda_asks_what_the_api_answers(api: Api) -> None:
    documents = {
        document["kind"]: document for document in yaml.safe_load_all((KEDA / "worker-autoscaling.yaml").read_text())
    }
    scaled, worker = documents["ScaledObject"]["spec"], documents["Deployment"]
    (trigger,) = scaled["triggers"]
    metadata, url = trigger["metadata"], urlsplit(trigger["metadata"]["url"])
    described = (await (await api.anybody()).get("/openapi.json")).json()
    operation = described["paths"][url.path]["get"]
    asked = parse_qs(url.query)
    assert asked.keys() <= {each["name"] for each in operation["parameters"]}
    reader = await api.client("workers:read")
    answer = await reader.get(url.path, params={name: values[0] for name, values in asked.items()})
    assert answer.status_code == 200, answer.text
    assert isinstance(answer.json()[metadata["valueLocation"]], int)
    # KEDA divides the value by the target, and that is then the number of replicas.
    assert (trigger["type"], trigger["metricType"], metadata["targetValue"]) == ("metrics-api", "AverageValue", "1")
    assert (metadata["authMode"], scaled["scaleTargetRef"]["name"]) == ("bearer", worker["metadata"]["name"])
    assert (str(scaled["minReplicaCount"]), str(scaled["maxReplicaCount"])) == (asked["min"][0], asked["max"][0])
    authentication = documents["TriggerAuthentication"]
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert authentication["spec"]["secretTargetRef"][0]["parameter"] == "token"
    pod = worker["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert pod["terminationGracePeriodSeconds"] > float(variables["TENANTRY_WORKER_DRAIN_SECONDS"])
