"""Ports of the embedded servers: free ones are chosen once and remembered, so that addresses stay the same."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Collection
from typing import Final

import psutil

from tenantry.embedded.directory import DataDirectory
from tenantry.errors import PortTaken

HOST: Final = "127.0.0.1"
# Below the range that the kernel hands to outgoing connections, which could sit on a port while we are down.
CHOICES: Final = range(20_000, 30_000)


def settle_port(directory: DataDirectory, use: str, wanted: int | None) -> int:
    """The port for `use`: the wanted one, else the remembered one, else a free one (always, if 0 is wanted)."""
    remembered = directory.remembered()
    port = wanted if wanted is not None else remembered.get(f"{use}_port", 0)
    if port == 0:
        port = free_port(avoid={value for name, value in remembered.items() if name.endswith("_port")})
    elif problem := why_not_free(port):
        raise PortTaken(
            f"port {port}, which {use} uses with the data directory {directory.path}, {problem}; "
            f"choose another one with --{use}-port (0: any free one)"
        )
    directory.remember(**{f"{use}_port": port})
    return port


def free_port(avoid: Collection[int] = ()) -> int:
    for port in random.sample(CHOICES, 200):
        if port not in avoid and not why_not_free(port):
            return port
    raise PortTaken(f"no free port found between {CHOICES.start} and {CHOICES.stop}; stop some servers and try again")


def why_not_free(port: int) -> str | None:
    """Why a server could not listen there; None if it could."""
    with socket.socket() as probe:
        # As the servers do it: a port whose last connections are still winding down is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                return f"is taken by {_holder(port)}"
            return f"cannot be used: {os.strerror(problem.errno or 0)}"
    return None


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:
        pass
    return "another process"
