"""The embedded platform as a process: what it leaves behind, what it survives, and what it refuses."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

import nats_bulk
from nats_bulk import Credentials, Message
from tests.processes import Up, run_tenantry, wait_for

RECOVERED = "database system was not properly shut down"


def connect_nats(up: Up) -> nats_bulk.Connection:
    environment = up.environment
    return nats_bulk.Connection(environment["NATS_URL"], credentials=Credentials.from_file(environment["NATS_CREDS"]))


def write(up: Up, number: int) -> None:
    """Something in each server that must still be there later."""
    with connect_nats(up) as connection:
        connection.request("$JS.API.STREAM.CREATE.KEPT", b'{"name":"KEPT","subjects":["kept"],"allow_direct":true}')
        nats_bulk.publish(connection, [Message("kept", b"%d" % number)]).raise_for_errors()
    with psycopg.connect(up.environment["DATABASE_URL"], autocommit=True) as database:
        database.execute("create table if not exists kept (number int)")
        database.execute("insert into kept values (%s)", [number])


def written(up: Up) -> tuple[list[int], list[int]]:
    with connect_nats(up) as connection:
        last = int(connection.request("$JS.API.STREAM.INFO.KEPT", b"").partition(b'"last_seq":')[2].partition(b",")[0])
        batches = nats_bulk.read_range(connection, "KEPT", 1, last)
        messages = [int(payload) for batch in batches for payload in batch.payloads]
    with psycopg.connect(up.environment["DATABASE_URL"]) as database:
        rows = [row[0] for row in database.execute("select number from kept order by number")]
    return messages, rows


def test_kill_9_three_times_in_a_row_loses_nothing_and_leaves_no_orphans(tmp_path: Path) -> None:
    data = tmp_path / "data"
    addresses = set()
    for number in (1, 2, 3):
        up = Up(data)
        up.until_ready()
        addresses.add(up.environment["NATS_URL"])
        assert len(up.servers) >= 2
        write(up, number)
        up.kill()
    # Not even the kernel's signal to the servers is waited for: the next start has to cope with whatever is left.
    with Up(data) as up:
        up.until_ready()
        assert written(up) == ([1, 2, 3], [1, 2, 3])
        addresses.add(up.environment["NATS_URL"])
    assert len(addresses) == 1
    wait_for(lambda: not up.servers)


def test_after_kill_9_the_servers_end_by_themselves(tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    up.until_ready()
    assert up.servers
    up.kill()
    wait_for(lambda: not up.servers)


def test_servers_that_were_killed_too_come_back_with_all_data(tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    up.until_ready()
    write(up, 1)
    up.process.send_signal(signal.SIGSTOP)
    for server in up.servers:
        # Some end by themselves with the one that started them.
        with suppress(psutil.NoSuchProcess):
            server.kill()
    up.kill()
    with Up(tmp_path / "data") as up:
        up.until_ready()
        assert written(up) == ([1], [1])
    assert RECOVERED in (up.data / "postgres" / "server.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_servers_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    up = Up(tmp_path / "data")
    up.until_ready()
    write(up, 1)
    up.process.send_signal(number)
    assert up.process.wait(60) == 0
    assert up.servers == []
    with Up(tmp_path / "data") as up:
        up.until_ready()
        assert written(up) == ([1], [1])
    assert RECOVERED not in (up.data / "postgres" / "server.log").read_text()


def test_a_server_that_dies_ends_the_platform_with_the_end_of_its_log(tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    up.until_ready()
    up.server("nats-server").kill()
    assert up.process.wait(60) == 1
    assert "nats ended with exit code -9" in up.output
    assert up.servers == []


def test_two_instances_run_side_by_side_and_a_second_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with Up(tmp_path / "one") as one, Up(tmp_path / "two") as two:
        one.until_ready()
        two.until_ready()
        write(one, 1)
        write(two, 2)
        assert written(one) == ([1], [1])
        assert written(two) == ([2], [2])
        third = run_tenantry("up", "--data", one.data)
        assert third.returncode == 1
        assert f"{one.data} is in use by process {one.process.pid}" in third.stderr
        assert "--data" in third.stderr
        assert written(one) == ([1], [1])


def test_secrets_can_be_read_by_their_owner_only(tmp_path: Path) -> None:
    with Up(tmp_path / "data") as up:
        up.until_ready()
        files = [*(up.data / "keys").rglob("*"), up.data / "env"]
        names = {file.name for file in files}
        assert {"operator.nk", "system.nk", "platform.nk", "platform.creds", "postgres-postgres.password"} <= names
        for file in files:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        assert stat.S_IMODE((up.data / "keys").stat().st_mode) == 0o700
        assert stat.S_IMODE(up.data.stat().st_mode) & 0o066 == 0
        secrets = [file.read_text() for file in files if file.suffix in (".nk", ".password")]
        told = up.output + "".join(" ".join(server.cmdline()) for server in up.servers)
        for log in up.data.rglob("server.log"):
            told += log.read_text()
        assert not any(secret.strip() in told for secret in secrets)


def test_a_taken_port_is_named_with_who_has_it(tmp_path: Path) -> None:
    with Up(tmp_path / "one") as one:
        one.until_ready()
        port = one.environment["NATS_URL"].rpartition(":")[2]
        other = run_tenantry("up", "--data", tmp_path / "two", "--nats-port", port)
        assert other.returncode == 1
        assert f"port {port}" in other.stderr
        assert "taken by nats-server (process" in other.stderr
        assert "--nats-port" in other.stderr


def test_a_remembered_port_that_is_taken_can_be_chosen_anew(tmp_path: Path) -> None:
    with Up(tmp_path / "one") as one:
        one.until_ready()
        port = one.environment["NATS_URL"].rpartition(":")[2]
        (tmp_path / "two").mkdir()
        (tmp_path / "two" / "state.json").write_text(f'{{"format": 1, "nats_port": {port}}}')
        refused = run_tenantry("up", "--data", tmp_path / "two", "--seconds", "0.1")
        assert refused.returncode == 1
        assert "0: any free one" in refused.stderr
        accepted = run_tenantry("up", "--data", tmp_path / "two", "--seconds", "0.1", "--nats-port", "0")
        assert accepted.returncode == 0, accepted.stderr


def test_a_data_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    refused = run_tenantry("up", "--data", file / "below")
    assert refused.returncode == 1
    assert "cannot use the data directory" in refused.stderr
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "state.json").write_text('{"format": 99}')
    refused = run_tenantry("up", "--data", newer)
    assert refused.returncode == 1
    assert "has format 99 and this release reads 1" in refused.stderr


def test_kill_9_while_the_database_is_made_is_made_good(tmp_path: Path) -> None:
    data = tmp_path / "data"
    up = Up(data)
    wait_for(lambda: (data / "postgres" / "new" / "data" / "PG_VERSION").exists())
    up.kill()
    assert not (data / "postgres" / "data").exists()
    with Up(data) as up:
        up.until_ready()
        write(up, 1)
        assert written(up) == ([1], [1])
    # Nothing of the attempt stays behind, least of all the password that it was given.
    assert not (data / "postgres" / "new").exists()


def test_a_database_that_was_killed_in_the_middle_of_a_query_comes_back(tmp_path: Path) -> None:
    """Its busy processes do not notice that their parent is gone, and they still write."""
    up = Up(tmp_path / "data")
    up.until_ready()
    write(up, 1)
    busy = threading.Thread(target=_count_for_ever, args=[up.environment["DATABASE_URL"]])
    busy.start()
    wait_for(lambda: any("SELECT" in part for server in up.servers for part in _cmdline(server)))
    up.server("postgres").kill()
    assert up.process.wait(60) == 1
    with Up(tmp_path / "data") as up:
        up.until_ready()
        assert written(up) == ([1], [1])
    busy.join()


def _count_for_ever(url: str) -> None:
    with pytest.raises(psycopg.OperationalError), psycopg.connect(url) as database:
        database.execute("select count(*) from generate_series(1, 1000000000) a, generate_series(1, 1000000) b")


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_a_second_signal_does_not_wait_for_a_server_that_hangs(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--demo")
    up.until_ready()
    up.server("nats-server").suspend()
    up.process.terminate()
    wait_for(lambda: "Stopping" in up.output or "drain_requested" in up.output)
    up.process.terminate()
    assert up.process.wait(20) == 1
    assert "ended by a second signal" in up.output
    wait_for(lambda: not up.servers)


@pytest.mark.parametrize("variable", [{"PGSSLMODE": "require"}, {"PGHOSTADDR": "192.0.2.1"}, {"PGPORT": "1"}])
def test_variables_for_another_database_do_not_reach_the_embedded_one(tmp_path: Path, variable: dict[str, str]) -> None:
    with Up(tmp_path / "data", env=variable) as up:
        up.until_ready()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 65534, 65534)
    refused = run_tenantry("up", "--data", data)
    assert refused.returncode == 1
    assert "belongs to user 65534" in refused.stderr


def test_a_path_with_quotes_and_brackets_works_in_a_shell(tmp_path: Path) -> None:
    with Up(tmp_path / "it's [bold]odd") as up:
        up.until_ready()
        script = '. "$1/env" && printf "%s" "$NATS_CREDS"'
        done = subprocess.run(["sh", "-c", script, "sh", up.data], capture_output=True, text=True, check=True)
        assert Path(done.stdout).exists()


def test_a_stale_process_number_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Up(data) as up:
        up.until_ready()
    (data / "postgres" / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n")
    with Up(data) as up:
        up.until_ready()
