"""Bulk publish against the real server: every message gets its own, true answer."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nats.js.api import DiscardPolicy, StreamConfig

import nats_bulk
from nats_bulk import Message
from tenantry.nats import claims
from tenantry.nats.accounts import AccountServer
from tenantry.nats.connections import Broker, connect, connect_bulk
from tenantry.nats.keys import Key, Role
from tenantry.testing import TestPlatform


async def add_stream(broker: Broker, name: str = "EVENTS", subject: str = "events.>", **options: object) -> None:
    async with connect(broker, "test") as client:
        config = StreamConfig(name=name, subjects=[subject], allow_direct=True, **options)  # type: ignore[arg-type]
        await client.jetstream().add_stream(config)


async def test_every_message_gets_the_sequence_it_was_stored_at(account: Broker) -> None:
    await add_stream(account)
    with connect_bulk(account, "test") as connection:
        messages = [Message(f"events.{n % 7}", b"%d" % n, f"id-{n}") for n in range(5000)]
        result = nats_bulk.publish(connection, messages, window=256)
        assert result.sequences == list(range(1, 5001))
        assert not result.errors
        stored = [
            payload for batch in nats_bulk.read_range(connection, "EVENTS", 1, 5000) for payload in batch.payloads
        ]
        assert stored == [b"%d" % n for n in range(5000)]


async def test_a_repeated_id_is_stored_once_and_reported_with_its_first_sequence(account: Broker) -> None:
    await add_stream(account)
    with connect_bulk(account, "test") as connection:
        first = nats_bulk.publish(connection, [Message("events.a", b"1", "one"), Message("events.a", b"2", "two")])
        again = nats_bulk.publish(
            connection,
            [Message("events.a", b"1", "one"), Message("events.a", b"3", "three"), Message("events.a", b"2", "two")],
        )
    assert first.sequences == [1, 2]
    assert again.sequences == [1, 3, 2]
    assert again.duplicates == {0, 2}
    assert not again.errors


async def test_headers_arrive_as_they_were_given(account: Broker) -> None:
    await add_stream(account)
    with connect_bulk(account, "test") as connection:
        headers = {"traceparent": "00-abc-def-01", "Unicode": "größe: 5"}
        nats_bulk.publish(connection, [Message("events.a", b"x", "one", headers), Message("events.a", b"y")])
        (batch,) = nats_bulk.read_range(connection, "EVENTS", 1, 2)
    assert nats_bulk.parse_headers(batch.headers[0]) == {
        "Nats-Msg-Id": ["one"],
        "traceparent": ["00-abc-def-01"],
        "Unicode": ["größe: 5"],
    }
    assert batch.headers[1] == b""


async def test_a_header_may_have_several_values(account: Broker) -> None:
    await add_stream(account)
    with connect_bulk(account, "test") as connection:
        headers = {"Via": ["a", "b"], "None": [], "One": "1"}
        nats_bulk.publish(connection, [Message("events.a", b"x", headers=headers)]).raise_for_errors()
        (batch,) = nats_bulk.read_range(connection, "EVENTS", 1, 1)
    assert nats_bulk.parse_headers(batch.headers[0]) == {"Via": ["a", "b"], "One": ["1"]}


async def test_one_message_that_fails_does_not_take_the_others_with_it(account: Broker) -> None:
    await add_stream(account, max_msg_size=100)
    with connect_bulk(account, "test") as connection:
        result = nats_bulk.publish(
            connection,
            [
                Message("events.a", b"fine", "1"),
                Message("events.a", b"x" * 101, "2"),
                Message("nowhere.a", b"fine", "3"),
                Message("events.a", b"x" * (connection.max_payload + 1), "4"),
                Message("events.a", b"fine", "5"),
            ],
        )
    assert result.sequences == [1, 0, 0, 0, 2]
    assert {position: error.code for position, error in result.errors.items()} == {1: 400, 2: 503, 3: 413}
    assert "message size exceeds maximum" in result.errors[1].description
    assert "no stream takes the subject nowhere.a now" in result.errors[2].description
    assert all(error.certain for error in result.errors.values())
    with pytest.raises(nats_bulk.PublishFailed, match="3 of 5 messages were not stored; the first is number 1"):
        result.raise_for_errors()


async def test_a_full_stream_refuses_only_what_does_not_fit(account: Broker) -> None:
    await add_stream(account, max_msgs=10, discard=DiscardPolicy.NEW)
    with connect_bulk(account, "test") as connection:
        result = nats_bulk.publish(connection, [Message("events.a", b"x", str(n)) for n in range(25)])
    assert result.sequences == [*range(1, 11), *[0] * 15]
    assert {error.err_code for error in result.errors.values()} == {10077}


async def test_a_subject_without_permission_is_refused_and_the_others_go_on(platform: TestPlatform) -> None:
    operator = platform.nats.identity.operator_signing
    key = Key.generate(Role.ACCOUNT)
    async with connect(platform.nats.system, "test") as system:
        await AccountServer(system, operator).push(claims.account_claims(operator, key.public, "limited"))
    await add_stream(Broker(platform.nats.url, claims.issue_user(key, "owner")))
    allowed = claims.UserPermissions(pub=claims.Permission(allow=["events.mine.>"]))
    with connect_bulk(
        Broker(platform.nats.url, claims.issue_user(key, "u", permissions=allowed)), "test"
    ) as connection:
        result = nats_bulk.publish(
            connection,
            [
                Message("events.mine.a", b"", "1"),
                Message("events.theirs.a", b"", "2"),
                Message("events.mine.b", b"", "3"),
            ],
        )
    assert result.sequences == [1, 0, 2]
    assert result.errors[1].code == 403
    assert "events.theirs.a" in result.errors[1].description


@pytest.mark.parametrize(
    "message",
    [
        Message("events.*", b""),
        Message("events.>", b""),
        Message("events a", b""),
        Message("events.a\r\nPUB evil 0\r\n", b""),
        Message("", b""),
        Message("events..a", b""),
        Message("events." + "a" * 3000, b""),
        Message("events.a", b"", "id\r\nEvil: 1"),
        Message("events.a", b"", ""),
        Message("events.a", b"", "  "),
        Message("events.a", b"", "\ud800"),
        Message("events.\ud800", b"", "1"),
        Message('events."a"', b"", "1"),
        Message("events.a", b"", None, {"Name": "\ud800"}),
        Message("events.a", b"", None, {"Name:": "x"}),
        Message("events.a", b"", None, {"Name": "x\ny"}),
    ],
)
async def test_what_would_break_the_protocol_is_never_sent_and_its_neighbours_are(
    account: Broker, message: Message
) -> None:
    await add_stream(account)
    with connect_bulk(account, "test") as connection:
        result = nats_bulk.publish(connection, [Message("events.a", b"", "1"), message, Message("events.a", b"", "2")])
    assert result.sequences == [1, 0, 2]
    assert result.errors[1].code == 400
    assert "expected" in result.errors[1].description


async def test_headers_count_towards_the_size_that_the_server_takes(account: Broker) -> None:
    await add_stream(account)
    with connect_bulk(account, "test") as connection:
        header = len("NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n")
        largest = bytes(connection.max_payload - header)
        result = nats_bulk.publish(
            connection, [Message("events.a", largest, "1"), Message("events.a", largest + b"x", "2")]
        )
    assert result.sequences == [1, 0]
    assert result.errors[1].code == 413


async def test_an_accounts_own_size_limit_is_learnt_and_fails_only_what_exceeds_it(platform: TestPlatform) -> None:
    limits = msgspec.structs.replace(claims.UNLIMITED_JETSTREAM, payload=1000)
    async with platform.account(limits) as broker:
        await add_stream(broker)
        with connect_bulk(broker, "test") as connection:
            messages = [Message("events.a", bytes(size), str(size)) for size in (4, 2000, 5)]
            result = nats_bulk.publish(connection, messages)
    assert result.sequences == [1, 0, 2]
    assert result.errors[1].code == 413


async def test_refusals_of_one_call_do_not_reach_the_next(platform: TestPlatform) -> None:
    denied = claims.UserPermissions(pub=claims.Permission(deny=["events.denied"]))
    key = Key.generate(Role.ACCOUNT)
    operator = platform.nats.identity.operator_signing
    async with connect(platform.nats.system, "test") as system:
        await AccountServer(system, operator).push(claims.account_claims(operator, key.public, "acme"))
    await add_stream(Broker(platform.nats.url, claims.issue_user(key, "owner")))
    with connect_bulk(Broker(platform.nats.url, claims.issue_user(key, "u", permissions=denied)), "test") as connection:
        for _ in range(5):
            result = nats_bulk.publish(connection, [Message("events.denied", b"", str(n)) for n in range(500)])
            assert {error.code for error in result.errors.values()} == {403}
            assert b'"EVENTS"' in connection.request("$JS.API.STREAM.INFO.EVENTS", b"")
            nats_bulk.publish(connection, [Message("events.allowed", b"")]).raise_for_errors()
            (batch,) = nats_bulk.read_range(connection, "EVENTS", 1, 1)
            assert batch.subjects == ["events.allowed"]
        with pytest.raises(nats_bulk.ServerRefused, match="denied"):
            connection.request("events.denied", b"")


async def test_the_acknowledgement_of_a_plain_request_is_its_answer(account: Broker) -> None:
    await add_stream(account)
    with connect_bulk(account, "test") as connection:
        assert msgspec.json.decode(connection.request("events.a", b"x"))["seq"] == 1


async def test_a_closed_connection_stays_closed(account: Broker) -> None:
    connection = connect_bulk(account, "test")
    connection.close()
    with pytest.raises(nats_bulk.ConnectionLost, match="closed"):
        nats_bulk.publish(connection, [Message("events.a", b"")])


async def test_a_window_of_nothing_is_refused(account: Broker) -> None:
    with connect_bulk(account, "test") as connection:
        for window in ({"window": 0}, {"window_bytes": 0}):
            with pytest.raises(ValueError, match="window"):
                nats_bulk.publish(connection, [], **window)


async def test_large_messages_go_out_in_pieces_of_a_bounded_size(
    account: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_stream(account)
    with connect_bulk(account, "test") as connection:
        sent: list[int] = []
        send = connection.send

        def measured(data: bytes) -> None:
            sent.append(len(data))
            send(data)

        monkeypatch.setattr(connection, "send", measured)
        messages = [Message("events.a", bytes(200_000), str(number)) for number in range(40)]
        nats_bulk.publish(connection, messages, window_bytes=1 << 20).raise_for_errors()
    assert max(sent) < 2 << 20
    assert len(sent) > 7


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    payloads=st.lists(st.binary(max_size=3000), max_size=60),
    window=st.integers(4, 64),
    window_bytes=st.integers(1, 5000),
    batch=st.integers(1, 20),
)
async def test_what_is_published_is_what_is_read(
    platform: TestPlatform, payloads: list[bytes], window: int, window_bytes: int, batch: int
) -> None:
    async with platform.account() as broker:
        await add_stream(broker)
        with connect_bulk(broker, "test") as connection:
            result = nats_bulk.publish(
                connection, [Message("events.a", body) for body in payloads], window=window, window_bytes=window_bytes
            )
            result.raise_for_errors()
            read = [
                body
                for found in nats_bulk.read_range(connection, "EVENTS", 1, len(payloads), batch=batch, batch_bytes=4000)
                for body in found.payloads
            ]
    assert read == payloads
