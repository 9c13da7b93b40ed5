"""Who may read a stream is shown nowhere: not in plans, checkpoints, the Spark UI, event logs or logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nats_bulk import Credentials
from pyspark_nats import Access, Stream
from tenantry.nats.connections import Broker, connect_bulk
from tests.own_server import OwnServer

PASSWORD = "an-open-secret-5f1c"

SCRIPT = """
import json, re, sys
from pathlib import Path
from urllib.request import urlopen
from tenantry.pipelines.session import local_session

folder, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
(folder / "events").mkdir()
spark = local_session("secrets", folder, cores=1, config={
    "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.log.level": "INFO",
    "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
    "spark.eventLog.dir": (folder / "events").as_uri(),
})
queries = []
for number, (options, _) in enumerate(cases):
    frame = spark.read.format("nats").options(**options).load()
    frame.explain("extended")
    frame.explain("formatted")
    assert frame.count() == 10, frame.count()
    events = spark.readStream.format("nats").options(**options).load()
    events.explain("extended")
    query = events.writeStream.format("noop").option("checkpointLocation", str(folder / f"checkpoint-{number}")).start()
    query.processAllAvailable()
    query.explain(True)
    print(query.lastProgress, query.status)
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 10
    queries.append(query)

# Every page of the UI, as far as links lead.
ui = spark.sparkContext.uiWebUrl
pages, seen = [ui + path for path in ("/jobs/", "/SQL/", "/StreamingQuery/", "/environment/", "/stages/", "/executors/",
    "/api/v1/applications/" + spark.sparkContext.applicationId + "/sql?details=true",
    "/api/v1/applications/" + spark.sparkContext.applicationId + "/environment")], set()
while pages and len(seen) < 60:
    page = pages.pop(0)
    if page in seen:
        continue
    seen.add(page)
    text = urlopen(page).read().decode(errors="replace")
    print(text)
    for link in re.findall(r'href="(/(?:SQL|StreamingQuery|jobs|stages)/[^"#]*)"', text):
        if "kill" not in link and "threadDump" not in link:
            pages.append(ui + link.replace("&amp;", "&"))
print("pages seen:", len(seen))
for query in queries:
    query.stop()
for options, wrong in cases:
    try:
        spark.read.format("nats").options(**(options | wrong)).load().count()
        raise SystemExit("a wrong login was let in")
    except Exception as problem:
        print("refused:", problem)
spark.stop()
"""


def fill(connection_of: Broker | str) -> None:
    import nats_bulk
    from nats_bulk import Connection, Message

    opened = Connection(connection_of) if isinstance(connection_of, str) else connect_bulk(connection_of, "tests")
    with opened as connection:
        config = {"name": "A", "subjects": ["A.>"], "allow_direct": True}
        connection.request("$JS.API.STREAM.CREATE.A", json.dumps(config).encode())
        nats_bulk.publish(connection, [Message("A.event", b"x")] * 10).raise_for_errors()


def everything_shown(folder: Path, *cases: tuple[dict[str, str], dict[str, str]]) -> str:
    """What Spark shows and writes of queries with these options, and then with others that are wrong."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, folder, json.dumps(cases)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    files = [path for part in ("events", "checkpoint-*") for path in folder.glob(f"{part}/**/*") if path.is_file()]
    shown = done.stdout + done.stderr + "".join(path.read_bytes().decode(errors="replace") for path in files)
    # Otherwise nothing was looked at that could have shown it.
    for sign in ("Physical Plan", "SparkListenerApplicationStart", "<title>secrets - ", "Details for Query"):
        assert sign in shown, sign
    assert shown.count('{"A": 11') >= len(cases)
    return shown


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[OwnServer]:
    (tmp_path / "guarded").mkdir()
    server = OwnServer(
        tmp_path / "guarded", f'authorization {{ users = [ {{ user: spark, password: "{PASSWORD}" }} ] }}'
    )
    await server.start()
    yield server
    await server.stop()


def catalog_of_credentials(options: dict[str, str]) -> list[Stream]:
    """Short-lived credentials, as a program would make them; here they are read from a file of the test."""
    kept = json.loads(Path(options["catalog.file"]).read_text())
    credentials = Credentials(jwt=kept["jwt"], seed=kept["seed"])
    return [Stream("A", access=Access(kept["url"], credentials))]


def test_neither_passwords_in_addresses_nor_credentials_of_catalogs_are_shown_anywhere(
    guarded: OwnServer, account: Broker, tmp_path: Path
) -> None:
    url = f"nats://spark:{PASSWORD}@{guarded.address}"
    fill(url)
    fill(account)
    kept = {"url": account.url, "jwt": account.credentials.jwt, "seed": account.credentials.seed}
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    (tmp_path / "stale.json").write_text(json.dumps(kept | {"jwt": kept["jwt"][:-8] + "AAAAAAAA"}))
    by_catalog = {"catalog": f"{__name__}:catalog_of_credentials", "catalog.file": str(tmp_path / "kept.json")}
    shown = everything_shown(
        tmp_path / "shown",
        ({"nats.url": url, "streams": "A"}, {"nats.url": url.replace(PASSWORD, "wrong-one")}),
        (by_catalog, {"catalog.file": str(tmp_path / "stale.json")}),
    )
    assert shown.count("refused us: Authorization Violation") >= 2
    for secret in (PASSWORD, "wrong-one", kept["seed"], kept["jwt"], kept["jwt"].split(".")[1]):
        assert secret not in shown
