"""Each way to connect, with both clients: nothing, token, user and password, NKEY, JWT, TLS, mutual TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec
import pytest
import trustme

import nats_bulk
from nats_bulk import Credentials, Message
from pyspark_nats import OptionInvalid
from tenantry.config import load
from tenantry.errors import BrokerRefused, BrokerUnreachable
from tenantry.nats import claims
from tenantry.nats.connections import Broker, connect, connect_bulk
from tenantry.nats.keys import Key, Role
from tenantry.testing import TestPlatform
from tests.servers.conftest import StartServer
from tests.spark.engine import Query


async def both_clients_get_in(broker: Broker) -> None:
    async with connect(broker, "test") as client:
        assert (await client.jetstream().account_info()).streams == 0
    with connect_bulk(broker, "test") as connection:
        assert b'"streams":0' in connection.request("$JS.API.INFO", b"")


async def both_clients_are_refused(broker: Broker) -> None:
    with pytest.raises(BrokerRefused) as refusal:
        async with connect(broker, "test"):
            pass
    with pytest.raises(BrokerRefused) as bulk_refusal:
        connect_bulk(broker, "test")
    for message in (str(refusal.value), str(bulk_refusal.value)):
        assert "check" in message
        assert "secret" not in message


async def test_without_authentication(start_server: StartServer) -> None:
    server = await start_server("")
    await both_clients_get_in(Broker(f"nats://{server.address}"))


async def test_with_a_token(start_server: StartServer) -> None:
    server = await start_server('authorization { token: "secret-token" }')
    await both_clients_get_in(Broker(f"nats://{server.address}", Credentials(token="secret-token")))
    await both_clients_get_in(Broker(f"nats://secret-token@{server.address}"))
    await both_clients_are_refused(Broker(f"nats://{server.address}", Credentials(token="secret-but-wrong")))
    await both_clients_are_refused(Broker(f"nats://secret-but-wrong@{server.address}"))


async def test_with_user_and_password(start_server: StartServer) -> None:
    server = await start_server('authorization { user: "u", password: "secret" }')
    await both_clients_get_in(Broker(f"nats://u:secret@{server.address}"))
    await both_clients_are_refused(Broker(f"nats://u:secret-but-wrong@{server.address}"))


async def test_with_an_nkey(start_server: StartServer) -> None:
    key, other = Key.generate(Role.USER), Key.generate(Role.USER)
    server = await start_server(f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}")
    await both_clients_get_in(Broker(f"nats://{server.address}", Credentials(seed=key.seed)))
    await both_clients_are_refused(Broker(f"nats://{server.address}", Credentials(seed=other.seed)))


async def test_with_a_jwt(platform: TestPlatform, account: Broker) -> None:
    await both_clients_get_in(account)
    stranger = claims.issue_user(Key.generate(Role.ACCOUNT), "stranger")
    await both_clients_are_refused(Broker(platform.nats.url, stranger))
    await both_clients_are_refused(Broker(platform.nats.url, Credentials(account.credentials.jwt, stranger.seed)))
    await both_clients_are_refused(Broker(platform.nats.url))


async def test_with_tls(start_server: StartServer, tmp_path: Path) -> None:
    authority, server_certificate, client_certificate = _certificates(tmp_path)
    server = await start_server(f'tls {{ cert_file: "{server_certificate}", key_file: "{server_certificate}" }}')
    trusting = load({"nats_url": f"tls://{server.address}", "nats_tls_ca": authority}).settings
    await both_clients_get_in(Broker.from_settings(trusting))
    await both_clients_are_refused(Broker(f"tls://{server.address}"))

    mutual = await start_server(
        f'tls {{ cert_file: "{server_certificate}", key_file: "{server_certificate}", '
        f'ca_file: "{authority}", verify: true }}'
    )
    flags = {"nats_url": f"tls://{mutual.address}", "nats_tls_ca": authority}
    files = {"nats_tls_cert": client_certificate, "nats_tls_key": client_certificate}
    await both_clients_get_in(Broker.from_settings(load(flags | files).settings))
    with pytest.raises((BrokerRefused, BrokerUnreachable)):
        connect_bulk(Broker.from_settings(load(flags).settings), "test")


async def test_tls_before_the_first_word(start_server: StartServer, tmp_path: Path) -> None:
    authority, certificate, _ = _certificates(tmp_path)
    server = await start_server(
        f'tls {{ cert_file: "{certificate}", key_file: "{certificate}", handshake_first: true }}'
    )
    context = ssl.create_default_context(cafile=authority)
    with nats_bulk.Connection(f"tls://{server.address}", tls=context, tls_first=True) as connection:
        assert b'"streams":0' in connection.request("$JS.API.INFO", b"")


async def test_spark_gets_in_by_tls_with_an_inbox_and_a_domain_of_its_own(
    start_server: StartServer, tmp_path: Path
) -> None:
    authority, server_certificate, client_certificate = _certificates(tmp_path)
    server = await start_server(
        f'tls {{ cert_file: "{server_certificate}", key_file: "{server_certificate}", ca_file: "{authority}", '
        f'verify: true, handshake_first: true }}\njetstream {{ domain: hub, store_dir: "{tmp_path / "hub"}" }}\n'
        f'authorization {{ users = [ {{ user: a, password: a, permissions: {{ subscribe: "_SPARK.>" }} }} ] }}'
    )
    url = f"tls://a:a@{server.address}"
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(client_certificate)
    with nats_bulk.Connection(url, tls=context, tls_first=True, inbox_prefix="_SPARK") as connection:
        stream = {"name": "A", "subjects": ["a"], "allow_direct": True}
        connection.request("$JS.API.STREAM.CREATE.A", msgspec.json.encode(stream))
        nats_bulk.publish(connection, [Message("a", b"1")]).raise_for_errors()
    tls = {"nats.tls.ca": authority, "nats.tls.cert": client_certificate, "nats.tls.key": client_certificate}
    options = {name: str(path) for name, path in tls.items()} | {"nats.tls.first": "true"}
    query = Query(url, streams="A", **options, **{"nats.inboxPrefix": "_SPARK", "nats.domain": "hub"})
    assert [row.data for row in query.trigger()] == [b"1"]
    lacking = Query(url, streams="A", **(options | {"nats.tls.ca": "/nowhere"}))
    with pytest.raises(OptionInvalid, match=r"cannot use the TLS files: .*nats\.tls\.ca, .* must exist on the driver"):
        lacking.trigger()


async def test_tls_that_was_asked_for_is_not_done_without(start_server: StartServer) -> None:
    server = await start_server("")
    with pytest.raises(BrokerRefused, match="does not offer TLS"):
        connect_bulk(Broker(f"tls://{server.address}"), "test")


async def test_a_creds_file(platform: TestPlatform, account: Broker, tmp_path: Path) -> None:
    file = tmp_path / "user.creds"
    file.write_text(claims.format_credentials(account.credentials))
    settings = load({"nats_url": platform.nats.url, "nats_creds": file}).settings
    await both_clients_get_in(Broker.from_settings(settings))


@pytest.mark.parametrize("content", [None, "", "-----BEGIN NATS USER JWT-----\nx\n------END NATS USER JWT------"])
def test_a_creds_file_that_is_missing_or_broken_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "user.creds"
    if content is not None:
        file.write_text(content)
    settings = load({"nats_url": "nats://127.0.0.1", "nats_creds": file}).settings
    with pytest.raises(BrokerRefused, match=r"user\.creds"):
        Broker.from_settings(settings)


async def test_a_server_that_is_not_there_is_named_at_once() -> None:
    broker = Broker("nats://127.0.0.1:9")
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:9.*is it running there"):
        async with connect(broker, "test"):
            pass
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:9.*is NATS running there"):
        connect_bulk(broker, "test")


async def test_of_several_servers_the_one_that_answers_is_used(start_server: StartServer) -> None:
    server = await start_server("")
    await both_clients_get_in(Broker(f"nats://127.0.0.1:9,nats://{server.address}"))


def _certificates(folder: Path) -> tuple[Path, Path, Path]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name in ("server", "client"):
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / f"{name}.pem"))
    return folder / "ca.pem", folder / "server.pem", folder / "client.pem"
