"""Accounts that somebody else provisioned, as folders: `meta.yaml`, and `user.creds` where the account has a user.

    accounts/acme/meta.yaml     name, stream, consumer, tenant_id
    accounts/acme/user.creds    how to connect; without it, the platform's own credentials are used

Names that start with a dot are drafts and mounts, and no accounts.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
import yaml

from nats_bulk import AuthenticationFailed, Credentials
from tenantry.config import StaticAccount
from tenantry.errors import AccountInvalid, SubjectInvalid
from tenantry.event import require_name
from tenantry.nats import claims
from tenantry.nats.keys import Key

META_FILE: Final = "meta.yaml"
CREDS_FILE: Final = "user.creds"
LARGEST_FILE: Final = 64 * 1024
LONGEST_NAME: Final = 255
LONGEST_FLUX: Final = 100
FLUX_SECONDS: Final = 0.002

# What the server refuses in the name of a stream or a consumer.
_ASSET_NAME = re.compile(rf"[^\s.*>/\\\x00-\x1f\x7f]{{1,{LONGEST_NAME}}}")
_FOLDER_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.@-]{0,127}")
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `meta.yaml` holds."""

    name: str
    stream: str
    consumer: str
    tenant_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A stream and a consumer to consume for a tenant, and as whom."""

    name: str
    stream: str
    consumer: str
    tenant_id: str
    credentials: Credentials | None = None
    """None: the platform's own."""
    origin: str = ""
    """The folder, or the entry of the configuration, that says so."""

    def places(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What no two accounts may share: the same work twice, or one consumer that belongs to two tenants."""
        nats_account, asset = "", (self.stream, self.consumer)
        if self.credentials and self.credentials.jwt:
            said = claims.read(self.credentials.jwt)
            nats_account = str(said["nats"].get("issuer_account") or said["iss"])
        return ("tenant", self.tenant_id, *asset), ("nats account", nats_account, *asset)


@dataclass(frozen=True, slots=True)
class Listing:
    """The accounts of a directory, and what is wrong with the other folders, by origin."""

    accounts: dict[str, Account] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    """Those whose files could not be read: nothing is known about them."""


def read_directory(directory: Path, static: Iterable[Account] = ()) -> Listing:
    """Every folder, by name; a broken one harms no other. OSError if the directory itself cannot be listed."""
    listing, unread = Listing(), set()
    taken = {place: account.origin for account in static for place in account.places()}
    for folder in _folders(directory):
        origin = str(folder)
        try:
            account = read_folder(folder)
            for place in account.places():
                if place in taken:
                    raise AccountInvalid(_already_taken(account, taken[place]))
        except AccountInvalid as problem:
            if not os.path.lexists(folder):
                continue
            listing.problems[origin] = str(problem)
            if isinstance(problem.__cause__, OSError):
                unread.add(origin)
        else:
            listing.accounts[origin] = account
            taken.update(dict.fromkeys(account.places(), origin))
    return Listing(listing.accounts, listing.problems, frozenset(unread))


def read_folder(path: Path) -> Account:
    """One folder; AccountInvalid names the path and the reason, and has the OSError, if that was it, as its cause."""
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except OSError as problem:
        raise AccountInvalid(f"cannot read {path}: {problem.strerror or problem}") from problem
    if not is_folder:
        raise AccountInvalid(f"expected {path} to be a folder with a {META_FILE} in it")
    text, creds = _read_both(path)
    if text is None:
        raise AccountInvalid(f"expected {path / META_FILE} to exist; write name, stream, consumer and tenant_id there")
    try:
        meta = _parse_meta(text)
    except AccountInvalid as problem:
        raise AccountInvalid(f"{path / META_FILE}: {problem}") from None
    credentials = None if creds is None else _parse_credentials(path / CREDS_FILE, creds)
    return _account(meta, credentials, str(path), str(path / META_FILE))


def read_static(static: StaticAccount) -> Account:
    """An account of the configuration."""
    origin = f"configuration ({static.name})"
    credentials = None
    if static.creds is not None:
        file = static.creds.expanduser()
        text = _read_text(file)
        if text is None:
            raise AccountInvalid(f"{origin}: expected the credentials file {file} to exist; check creds")
        credentials = _parse_credentials(file, text)
    meta = Meta(static.name, static.stream, static.consumer, static.tenant_id)
    return _account(meta, credentials, origin, origin)


def write_folder(directory: Path, account: Account) -> Path:
    """Write the account as a folder of that name, new or in place of another. Who looks sees all of it or nothing."""
    _require(account.name, _FOLDER_NAME, "name", "to be fit for a folder: letters, digits and - _ . @", account.origin)
    folder, draft = directory / account.name, directory / f".{account.name}.draft"
    meta = Meta(account.name, account.stream, account.consumer, account.tenant_id)
    _account(meta, account.credentials, str(folder), str(folder))
    files = {META_FILE: yaml.safe_dump(msgspec.structs.asdict(meta), sort_keys=False, allow_unicode=True)}
    if account.credentials:
        if not (account.credentials.jwt and account.credentials.seed):
            raise AccountInvalid(f"{folder}: expected credentials of a JWT and a seed, for they go into {CREDS_FILE}")
        files[CREDS_FILE] = claims.format_credentials(account.credentials)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _discard(draft)
        draft.mkdir(mode=0o700)
        for name, text in files.items():
            _write(draft / name, text)
        _put_in_place(draft, folder)
    except OSError as problem:
        raise AccountInvalid(f"cannot write {folder}: {problem.strerror or problem}") from problem
    return folder


def _folders(directory: Path) -> Iterator[Path]:
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    # A link that leads nowhere is no file either: it is read, and reported.
    return (directory / name for name in names if not (directory / name).is_file())


def _already_taken(account: Account, by: str) -> str:
    return (
        f"{account.origin}: stream {account.stream} and consumer {account.consumer} of tenant {account.tenant_id} are "
        f"taken by {by}; remove one of the two, or give it a consumer of its own"
    )


def _read_both(path: Path) -> tuple[str | None, str | None]:
    """The two files as they belong together: the folder may be replaced between one and the other."""
    both = None
    for _ in range(LONGEST_FLUX):
        before, both = both, (_read_text(path / META_FILE), _read_text(path / CREDS_FILE))
        if both == before:
            return both
        # Whoever writes may be as quick as we are.
        time.sleep(random.uniform(0, FLUX_SECONDS))
    raise AccountInvalid(f"expected {path} to stay the same for a moment; it is read again when it has changed")


def _read_text(file: Path) -> str | None:
    """None only if there is nothing of that name; what is there and cannot be read is an error."""
    try:
        found = file.stat()
        # Anything else than a file, such as a pipe, could keep the reader waiting for ever.
        if not stat.S_ISREG(found.st_mode):
            raise AccountInvalid(f"expected {file} to be a file")
        if found.st_size > LARGEST_FILE:
            raise AccountInvalid(f"expected {file} to have at most {LARGEST_FILE} bytes, got: {found.st_size}")
        return file.read_text(encoding="utf-8")
    except OSError as problem:
        if isinstance(problem, FileNotFoundError) and not file.is_symlink():
            return None
        raise AccountInvalid(f"cannot read {file}: {problem.strerror or problem}; check its permissions") from problem
    except UnicodeDecodeError:
        raise AccountInvalid(f"expected {file} to be UTF-8 text") from None


@lru_cache(maxsize=4096)
def _parse_meta(text: str) -> Meta:
    try:
        return msgspec.convert(yaml.safe_load(text), Meta)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        where = f" in line {mark.line + 1}" if mark else ""
        raise AccountInvalid(f"expected YAML, got: {problem.problem}{where}") from None
    except msgspec.ValidationError as problem:
        raise AccountInvalid(f"{problem}; expected name, stream, consumer and tenant_id, all of them text") from None
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise AccountInvalid(f"expected YAML, got: {str(problem).splitlines()[0]}") from None


def _parse_credentials(file: Path, text: str) -> Credentials:
    try:
        credentials = Credentials.from_text(text, origin=str(file))
        said = claims.read(credentials.jwt)
        if said["sub"] != Key(credentials.seed).public or not isinstance(said["nats"], dict) or "iss" not in said:
            raise ValueError("expected the seed to belong to the user whom the JWT names")
    except AuthenticationFailed as problem:
        raise AccountInvalid(str(problem)) from None
    except (KeyError, TypeError):
        raise AccountInvalid(f"{file}: expected the JWT of a user, got something else") from None
    except ValueError as problem:
        raise AccountInvalid(f"{file}: {problem}") from None
    return credentials


def _account(meta: Meta, credentials: Credentials | None, origin: str, place: str) -> Account:
    if not meta.name.strip() or len(meta.name) > LONGEST_NAME or not meta.name.isprintable():
        raise AccountInvalid(f"{place}: expected name to be 1 to {LONGEST_NAME} printable characters")
    _require(meta.stream, _ASSET_NAME, "stream", "to be a name without dots, spaces, *, >, / and \\", place)
    _require(meta.consumer, _ASSET_NAME, "consumer", "to be a name without dots, spaces, *, >, / and \\", place)
    try:
        require_name("tenant", meta.tenant_id)
    except SubjectInvalid as problem:
        raise AccountInvalid(f"{place}: tenant_id: {problem}") from None
    return Account(
        name=meta.name,
        stream=meta.stream,
        consumer=meta.consumer,
        tenant_id=meta.tenant_id,
        credentials=credentials,
        origin=origin,
    )


def _require(value: str, pattern: re.Pattern[str], field: str, expected: str, place: str) -> None:
    if not pattern.fullmatch(value):
        raise AccountInvalid(f"{place}: expected {field} {expected}, got: {value[:80]!r}")


def _write(file: Path, text: str) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _put_in_place(draft: Path, folder: Path) -> None:
    if not os.path.lexists(folder):
        draft.rename(folder)
        return
    # Rename cannot replace a folder that is not empty; Linux can exchange the two, so that there always is one.
    libc = ctypes.CDLL(None)
    names = _AT_FDCWD, os.fsencode(draft), _AT_FDCWD, os.fsencode(folder), _RENAME_EXCHANGE
    if hasattr(libc, "renameat2") and libc.renameat2(*names) == 0:
        _discard(draft)
        return
    old = draft.with_suffix(".old")
    _discard(old)
    folder.rename(old)
    draft.rename(folder)
    _discard(old)


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
