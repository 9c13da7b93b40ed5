"""Who reads documents sees those of one tenant, and the ones that are served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from tenantry.pipelines.documents import Documents
from tenantry.postgres.pool import Pool, open_pool
from tenantry.tenants.administration import Administration
from tenantry.testing import TestPlatform
from tests.pipelines.place import Place, Sent, plain_fold

EVERYTHING = "select tenant_id, id from tenantry.documents"
TENANT_NOT_NAMED = ("", "nobody", "acme globex", "ACME")


@pytest.fixture
async def superuser(place: Place, platform: TestPlatform) -> AsyncIterator[Pool]:
    """Somebody for whom row-level security does not hold, with the role that a superuser's migration makes."""
    name = str(conninfo_to_dict(place.url)["dbname"])
    async with open_pool(platform.postgres.address("postgres", name), 2) as pool:
        async with pool.connection() as connection:
            # Another test may have made it, and all databases of a server have the same roles.
            with suppress(errors.DuplicateObject, errors.UniqueViolation):
                await connection.execute("create role tenantry_reader nologin")
            await connection.execute("grant usage on schema tenantry to tenantry_reader")
            await connection.execute("grant select on tenantry.documents to tenantry_reader")
        yield pool


def fill(place: Place) -> list[Sent]:
    place.open_lanes("acme", "globex")
    events = [Sent(each, f"doc-{each}", each, tenant) for each in range(1, 6) for tenant in ("acme", "globex")]
    place.fold([*events, Sent(6, "doc-5", "delete", "acme"), Sent(6, "secret", "of globex", "globex")])
    return [each for each in events if each.tenant == "acme" and each.sequence < 5]


async def check_reading(place: Place, documents: Documents) -> None:
    own = plain_fold(fill(place))
    found = await documents.find("acme", place.name, "doc-2")
    assert found
    assert (found.id, found.projection, found.sequence) == ("doc-2", place.name, 2)
    assert msgspec.json.decode(found.document) == own["doc-2"]
    for missing in ("secret", "doc-5", "nothing"):
        assert await documents.find("acme", place.name, missing) is None
    assert await documents.find("acme", "no-such-projection", "doc-2") is None
    assert await documents.find("nobody", place.name, "doc-2") is None
    assert await documents.find("*", place.name, "doc-2") is None
    listed = await documents.list("acme", place.name, None, 10)
    assert {each.id: msgspec.json.decode(each.document) for each in listed} == own
    pages = [await documents.list("acme", place.name, after, 3) for after in (None, "doc-3", "doc-4")]
    assert [[each.id for each in page] for page in pages] == [["doc-1", "doc-2", "doc-3"], ["doc-4"], []]


async def test_a_tenants_documents_are_found_and_listed(place: Place, administration: Administration) -> None:
    await check_reading(place, Documents(administration.pool))


async def test_they_are_found_and_listed_by_a_superuser_alike(place: Place, superuser: Pool) -> None:
    await check_reading(place, Documents(superuser))


async def test_of_two_generations_the_one_that_is_served_is_read(place: Place, administration: Administration) -> None:
    documents = Documents(administration.pool)
    place.open_lanes("acme")
    place.fold([Sent(1, "a", "old"), Sent(2, "b", "old")])
    place.open_lanes("acme", pipeline="rebuild", generation=2)
    place.fold([Sent(1, "a", "new")], pipeline="rebuild")
    before = await documents.list("acme", place.name, None, 10)
    assert [(each.id, each.generation) for each in before] == [("a", 1), ("b", 1)]
    place.execute("update tenantry.pipeline_lanes set generation = 2 where pipeline = %s", [place.name])
    (after,) = await documents.list("acme", place.name, None, 10)
    assert (after.id, after.generation) == ("a", 2)
    assert b"new" in bytes(after.document)
    assert await documents.find("acme", place.name, "b") is None


async def test_a_session_of_one_tenant_sees_no_other_even_if_it_asks_for_everything(
    place: Place, administration: Administration
) -> None:
    fill(place)
    async with administration.pool.connection() as connection:
        assert await (await connection.execute(EVERYTHING)).fetchall() == []
        for tenant in TENANT_NOT_NAMED:
            assert await _everything_as(connection, tenant) == []
        assert {row[0] for row in await _everything_as(connection, "acme")} == {"acme"}
        assert {row[0] for row in await _everything_as(connection, "*")} == {"acme", "globex"}
        # What is set is set for a transaction, and the next one on the same connection sees nothing.
        assert await (await connection.execute(EVERYTHING)).fetchall() == []


async def test_a_superuser_who_reads_through_the_role_sees_no_other_tenant(place: Place, superuser: Pool) -> None:
    fill(place)
    documents = Documents(superuser)
    async with documents._serving("acme", place.name) as (connection, _):
        assert {row[0] for row in await (await connection.execute(EVERYTHING)).fetchall()} == {"acme"}
    async with superuser.connection() as connection:
        role = await (await connection.execute("select current_user")).fetchone()
        assert role == ("postgres",)


async def test_nobody_writes_a_document_of_a_tenant_that_the_session_does_not_name(
    place: Place, administration: Administration
) -> None:
    fill(place)
    statement = "update tenantry.documents set document = '{}'"
    async with administration.pool.connection() as connection:
        assert (await connection.execute(statement)).rowcount == 0
        async with connection.transaction():
            await connection.execute("select set_config('tenantry.tenant', 'acme', true)")
            assert (await connection.execute(statement)).rowcount == 5
    assert {"seen": [[6, "of globex"]]} in place.documents("globex").values()


async def _everything_as(connection: Any, tenant: str) -> list[tuple[str, str]]:
    async with connection.transaction():
        await connection.execute("select set_config('tenantry.tenant', %s, true)", [tenant])
        rows: list[tuple[str, str]] = await (await connection.execute(EVERYTHING)).fetchall()
    return rows
