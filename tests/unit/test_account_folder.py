"""Account folders: what is read, what is refused and why, and that nobody sees half a folder."""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from nats_bulk import Credentials
from tenantry.config import StaticAccount
from tenantry.errors import AccountInvalid
from tenantry.nats import claims
from tenantry.nats.keys import Key, Role
from tenantry.tenants.account_folder import Account, read_directory, read_folder, read_static, write_folder

META = {"name": "acme", "stream": "ACME", "consumer": "workers", "tenant_id": "acme"}
ACME = Account(name="acme", stream="ACME", consumer="workers", tenant_id="acme")
NATS_ACCOUNT = Key.generate(Role.ACCOUNT)


def credentials(account: Key = NATS_ACCOUNT) -> Credentials:
    return claims.issue_user(account, "user")


def folder(path: Path, meta: object = META, creds: str | None = None) -> Path:
    path.mkdir(parents=True)
    (path / "meta.yaml").write_text(meta if isinstance(meta, str) else yaml.safe_dump(meta))
    if creds is not None:
        (path / "user.creds").write_text(creds)
    return path


def test_a_folder_is_read_as_it_says(tmp_path: Path) -> None:
    user = credentials()
    path = folder(tmp_path / "acme", creds=claims.format_credentials(user))
    assert read_folder(path) == replace(ACME, credentials=user, origin=str(path))


def test_a_folder_without_credentials_uses_those_of_the_platform(tmp_path: Path) -> None:
    assert read_folder(folder(tmp_path / "acme")).credentials is None


def test_secrets_stay_out_of_what_is_printed(tmp_path: Path) -> None:
    user = credentials()
    account = read_folder(folder(tmp_path / "acme", creds=claims.format_credentials(user)))
    assert user.seed not in repr(account)
    assert user.jwt not in repr(account)


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ("name: [", r"expected YAML, got: .* in line 1"),
        ("\x00", "expected YAML"),
        ("[" * 5000, "expected YAML"),
        ("when: 2024-13-45", "expected YAML, got: month"),
        ("", "Expected `object`, got `null`"),
        ("- acme", "Expected `object`, got `array`"),
        ({**META, "steam": "ACME"}, "unknown field `steam`"),
        ({key: META[key] for key in ("name", "consumer", "tenant_id")}, "missing required field `stream`"),
        ({**META, "tenant_id": 7}, r"Expected `str`, got `int` - at `\$.tenant_id`; .* all of them text"),
        ({**META, "tenant_id": "Acme Inc."}, "tenant_id: expected tenant to match .* got: 'Acme Inc.'"),
        ({**META, "stream": "a.b"}, "expected stream to be a name without dots.* got: 'a.b'"),
        ({**META, "stream": ""}, "expected stream"),
        ({**META, "stream": "x" * 256}, "expected stream"),
        ({**META, "consumer": "a b"}, "expected consumer"),
        ({**META, "consumer": "*"}, "expected consumer"),
        ({**META, "consumer": ">"}, "expected consumer"),
        ({**META, "consumer": "../up"}, "expected consumer"),
        ({**META, "consumer": "a\\b"}, "expected consumer"),
        ({**META, "name": " "}, "expected name"),
        ("#" * 70_000, "expected .* to have at most 65536 bytes, got: 70000"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path: Path, meta: object, reason: str) -> None:
    path = folder(tmp_path / "acme", meta)
    with pytest.raises(AccountInvalid, match=reason) as problem:
        read_folder(path)
    assert str(path / "meta.yaml") in str(problem.value)


def test_a_missing_meta_file_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(AccountInvalid, match="write name, stream, consumer and tenant_id there"):
        read_folder(tmp_path)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (folder(tmp_path / "acme") / "meta.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(AccountInvalid, match="UTF-8"):
        read_folder(tmp_path / "acme")


def test_credentials_that_cannot_be_read_are_an_error_and_not_absent(tmp_path: Path) -> None:
    (folder(tmp_path / "a") / "user.creds").mkdir()
    with pytest.raises(AccountInvalid, match=r"expected .*user\.creds to be a file"):
        read_folder(tmp_path / "a")
    (folder(tmp_path / "b") / "user.creds").symlink_to("nowhere")
    with pytest.raises(AccountInvalid, match=r"cannot read .*user\.creds: No such file"):
        read_folder(tmp_path / "b")
    (folder(tmp_path / "c") / "user.creds").symlink_to("user.creds")
    with pytest.raises(AccountInvalid, match=r"cannot read .*user\.creds: Too many levels"):
        read_folder(tmp_path / "c")
    os.mkfifo(folder(tmp_path / "d") / "user.creds")
    with pytest.raises(AccountInvalid, match=r"expected .*user\.creds to be a file"):
        read_folder(tmp_path / "d")


def test_broken_credentials_are_refused_without_showing_them(tmp_path: Path) -> None:
    user, other = credentials(), credentials()
    text = claims.format_credentials(user)
    cases = {
        "nothing": ("", "block"),
        "no-seed": (text.partition("***")[0], "USER NKEY SEED"),
        "bad-seed": (text.replace(user.seed, "SUNONSENSE"), "NKEY seed"),
        "bad-jwt": (text.replace(user.jwt, "a.b.c"), "JWT"),
        "other-seed": (text.replace(user.seed, other.seed), "belong"),
        "no-user": (text.replace(user.jwt, f"a.{'W10'}.c"), "JWT of a user"),
    }
    for name, (creds, reason) in cases.items():
        with pytest.raises(AccountInvalid, match=reason) as problem:
            read_folder(folder(tmp_path / name, creds=creds))
        assert str(tmp_path / name / "user.creds") in str(problem.value)
        assert not any(secret in str(problem.value) for secret in (user.seed, other.seed, user.jwt))


def test_a_static_account_is_held_to_the_same_rules(tmp_path: Path) -> None:
    user = credentials()
    file = tmp_path / "user.creds"
    static = StaticAccount(**META, creds=file)
    with pytest.raises(AccountInvalid, match=r"configuration \(acme\): expected the credentials file"):
        read_static(static)
    file.write_text(claims.format_credentials(user))
    assert read_static(static) == replace(ACME, credentials=user, origin="configuration (acme)")
    with pytest.raises(AccountInvalid, match=r"configuration \(acme\): tenant_id"):
        read_static(static.model_copy(update={"tenant_id": "No!"}))


def test_a_broken_folder_harms_no_other(tmp_path: Path) -> None:
    good = folder(tmp_path / "good")
    broken = folder(tmp_path / "broken", "name: [")
    unread = folder(tmp_path / "unread")
    (unread / "user.creds").symlink_to("user.creds")
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / ".draft").mkdir()
    (tmp_path / "README.md").write_text("Not an account.")
    listing = read_directory(tmp_path)
    assert set(listing.accounts) == {str(good)}
    assert set(listing.problems) == {str(broken), str(unread), str(tmp_path / "nowhere")}
    assert listing.unread == {str(unread), str(tmp_path / "nowhere")}


def test_of_two_folders_with_the_same_work_the_first_by_name_stays(tmp_path: Path) -> None:
    second, first = folder(tmp_path / "b"), folder(tmp_path / "a")
    listing = read_directory(tmp_path)
    assert set(listing.accounts) == {str(first)}
    assert f"taken by {first}" in listing.problems[str(second)]


def test_one_consumer_cannot_belong_to_two_tenants(tmp_path: Path) -> None:
    folder(tmp_path / "a", creds=claims.format_credentials(credentials()))
    folder(tmp_path / "b", {**META, "tenant_id": "globex"}, claims.format_credentials(credentials()))
    elsewhere = claims.format_credentials(credentials(Key.generate(Role.ACCOUNT)))
    folder(tmp_path / "c", {**META, "tenant_id": "initech"}, elsewhere)
    listing = read_directory(tmp_path)
    assert [account.tenant_id for account in listing.accounts.values()] == ["acme", "initech"]
    assert "taken by" in listing.problems[str(tmp_path / "b")]


def test_a_static_account_comes_before_a_folder(tmp_path: Path) -> None:
    path = folder(tmp_path / "acme")
    listing = read_directory(tmp_path, [read_static(StaticAccount(**META))])
    assert "taken by configuration (acme)" in listing.problems[str(path)]


def test_a_mounted_secret_is_read_through_its_links(tmp_path: Path) -> None:
    folder(tmp_path / "..2026_01" / "acme")
    (tmp_path / "..data").symlink_to("..2026_01")
    (tmp_path / "acme").symlink_to("..data/acme")
    mounted = tmp_path / "globex"
    folder(mounted / "..2026_01", {**META, "tenant_id": "globex", "consumer": "globex"})
    (mounted / "..data").symlink_to("..2026_01")
    (mounted / "meta.yaml").symlink_to("..data/meta.yaml")
    listing = read_directory(tmp_path)
    assert not listing.problems
    assert [account.tenant_id for account in listing.accounts.values()] == ["acme", "globex"]


def test_what_is_written_is_what_is_read_and_nobody_elses_to_read(tmp_path: Path) -> None:
    account = replace(ACME, credentials=credentials())
    path = write_folder(tmp_path / "accounts", account)
    assert read_folder(path) == replace(account, origin=str(path))
    assert yaml.safe_load((path / "meta.yaml").read_text()) == META
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (path, *path.iterdir())}
    assert modes == {"acme": 0o700, "meta.yaml": 0o600, "user.creds": 0o600}


def test_writing_again_replaces_all_of_the_folder_and_leaves_nothing_behind(tmp_path: Path) -> None:
    write_folder(tmp_path, replace(ACME, credentials=credentials()))
    (tmp_path / ".acme.draft").mkdir()
    (tmp_path / ".acme.draft" / "meta.yaml").write_text("left by one who died")
    path = write_folder(tmp_path, replace(ACME, stream="OTHER"))
    assert read_folder(path) == replace(ACME, stream="OTHER", origin=str(path))
    assert [each.name for each in tmp_path.iterdir()] == ["acme"]


def test_who_reads_while_it_is_replaced_sees_the_old_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "acme"
    versions = [
        replace(ACME, origin=str(path)),
        replace(ACME, origin=str(path), consumer="b", credentials=credentials()),
        replace(ACME, origin=str(path), consumer="c", credentials=credentials()),
    ]
    write_folder(tmp_path, versions[0])
    done = threading.Event()

    def replace_it() -> None:
        for number in range(200):
            write_folder(tmp_path, versions[number % 3])
        done.set()

    writer = threading.Thread(target=replace_it)
    writer.start()
    while not done.is_set():
        listing = read_directory(tmp_path)
        assert listing.problems == {}
        assert listing.accounts[str(path)] in versions
    writer.join()


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(AccountInvalid, match="fit for a folder"):
        write_folder(tmp_path, replace(ACME, name="../up"))
    with pytest.raises(AccountInvalid, match="fit for a folder"):
        write_folder(tmp_path, replace(ACME, name=".hidden"))
    with pytest.raises(AccountInvalid, match="a JWT and a seed"):
        write_folder(tmp_path, replace(ACME, credentials=Credentials(token="secret")))
    with pytest.raises(AccountInvalid, match="expected stream"):
        write_folder(tmp_path, replace(ACME, stream="a.b"))
    (tmp_path / "file").write_text("")
    with pytest.raises(AccountInvalid, match="cannot write"):
        write_folder(tmp_path / "file", ACME)
