"""Becomes a server process that ends with its parent and, where the server insists on it, is not root.

Run as a script by `child.py`: PARENT_PID STOP_SIGNAL USER COMMAND…; an empty USER keeps the one we are.
"""

import ctypes
import os
import pwd
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_READ_SEARCH = 2


def main() -> None:
    parent, stop_signal, user, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    # A group of its own: Ctrl-C goes to the parent, which then stops its servers in order.
    os.setpgid(0, 0)
    on_linux = sys.platform == "linux"
    if user:
        become(user, keep_reach=on_linux and not can_reach(user, os.getcwd()))
        if not os.access(command[0], os.X_OK):
            sys.exit(f"the user {user} may not run {command[0]}")
    if on_linux:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, stop_signal)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getppid() != parent:
        sys.exit("the parent is gone already")
    os.execv(command[0], command)


def can_reach(user: str, folder: str) -> bool:
    """Whether the user may walk into the folder. Asked in a child, which can then stop being root."""
    child = os.fork()
    if child == 0:
        become(user, keep_reach=False)
        os._exit(0 if os.access(folder, os.X_OK) else 1)
    return os.waitpid(child, 0)[1] == 0


def become(user: str, keep_reach: bool) -> None:
    """Give up root. `keep_reach` lets the server still walk through folders that are closed to the user."""
    entry = pwd.getpwnam(user)
    libc = ctypes.CDLL(None, use_errno=True)
    if keep_reach:
        libc.prctl(PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    if keep_reach and not keep(libc, CAP_DAC_READ_SEARCH):
        sys.exit(
            f"the user {user}, as whom root runs this server, cannot walk to {os.getcwd()}; choose a directory that is "
            "open to others (--data /var/lib/tenantry), or do not start as root"
        )


def keep(libc: ctypes.CDLL, capability: int) -> bool:
    """Keep one capability across the exec to come."""
    bit = 1 << capability
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    if libc.capset(header, sets) != 0:
        return False
    return bool(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0) == 0)


if __name__ == "__main__":
    main()
