"""Create .venv and install what requirements.lock pins: what `make install` runs.

It needs only a Python with venv. uv does the work where it is on the PATH or can be fetched, else pip does. Everything
up to the version check is written so that an old Python can still say what is wrong.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

OLDEST_PYTHON = (3, 11)
NEWER_PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11")
DISK_NEEDED_MB = 3000

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOCK = os.path.join(ROOT, "requirements.lock")
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "installed")


class CannotInstall(Exception):
    """What is missing, and what to do about it, in one sentence or two."""


def main():
    try:
        require_python()
        if is_installed():
            return 0
        require_disk()
        create_venv()
        install()
    except CannotInstall as problem:
        sys.stderr.write("\nCannot install Tenantry: {}\n".format(problem))
        return 1
    return 0


def require_python():
    if sys.version_info >= OLDEST_PYTHON:
        return
    for name in NEWER_PYTHONS:
        path = find_on_path(name)
        if path:
            os.execv(path, [path, os.path.abspath(__file__)])
    raise CannotInstall(
        "it needs Python {}.{} or newer, and {} is Python {}.{}. Install a newer one (for example `apt install "
        "python3.12 python3.12-venv`, or `brew install python@3.12`), then run make with PYTHON=python3.12.".format(
            OLDEST_PYTHON[0], OLDEST_PYTHON[1], sys.executable, sys.version_info[0], sys.version_info[1]
        )
    )


def find_on_path(name):
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None


def fingerprint():
    """Changes whenever what is installed no longer fits the checkout."""
    digest = hashlib.sha256(ROOT.encode())
    for name in (LOCK, os.path.join(ROOT, "pyproject.toml")):
        with open(name, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def is_installed():
    try:
        with open(STAMP) as file:
            return file.read() == fingerprint() and os.access(VENV_PYTHON, os.X_OK)
    except OSError:
        return False


def require_disk():
    # Only a first install needs all of it: later ones replace what changed.
    needed = DISK_NEEDED_MB if not os.path.exists(STAMP) else DISK_NEEDED_MB // 4
    free = shutil.disk_usage(ROOT).free // 10**6
    if free < needed:
        raise CannotInstall(
            "the disk that holds {} has {} MB free and the install takes up to {} MB. Free some space, or clone onto "
            "another disk, and run make again.".format(ROOT, free, needed)
        )


def create_venv():
    if os.path.exists(VENV_PYTHON) and succeeds([VENV_PYTHON, "-m", "pip", "--version"]):
        return
    say("creating .venv with Python {}.{}".format(*sys.version_info[:2]))
    shutil.rmtree(VENV, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", VENV], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        raise CannotInstall(
            "{} could not create a virtual environment. On Debian and Ubuntu run `apt install python3-venv`, then make "
            "again. It said:\n{}".format(sys.executable, made.stdout.decode(errors="replace").strip())
        )


def install():
    uv = find_uv()
    say("installing the pinned packages (about 1.5 GB; a minute or two the first time)")
    if uv:
        requirements = [uv, "pip", "install", "--python", VENV_PYTHON, "--compile-bytecode"]
    else:
        requirements = [VENV_PYTHON, "-m", "pip", "install"]
    run(requirements + ["--require-hashes", "-r", LOCK])
    # The build backend is pinned by the lock, so the project itself needs nothing more from outside.
    run(requirements + ["--no-deps", "--no-build-isolation", "--editable", ROOT])
    with open(STAMP, "w") as file:
        file.write(fingerprint())
    say("installed in .venv")


def find_uv():
    """uv from the PATH, from an earlier run, or fetched in a second or two; None leaves the work to pip."""
    for path in (find_on_path("uv"), os.path.join(VENV, "bin", "uv")):
        if path and succeeds([path, "--version"]):
            return path
    say("fetching uv")
    with tempfile.TemporaryDirectory() as folder:
        pinned = os.path.join(folder, "uv.txt")
        with open(pinned, "w") as file:
            file.write(pin_of("uv"))
        command = [VENV_PYTHON, "-m", "pip", "install", "--quiet", "--retries", "1", "--require-hashes", "-r", pinned]
        if succeeds(command):
            return os.path.join(VENV, "bin", "uv")
    say("uv cannot be fetched; going on with pip, which is slower")
    return None


def pin_of(package):
    """The lines of the lock that pin one package: its version and hashes."""
    lines = []
    with open(LOCK) as file:
        for line in file:
            if line.startswith(package + "==") or (lines and line.startswith(" ")):
                lines.append(line)
            elif lines:
                break
    return "".join(lines)


def run(command):
    # uv brings its own list of certificate authorities unless told to trust the machine's, which companies extend.
    environment = dict(os.environ, UV_SYSTEM_CERTS="1", UV_LINK_MODE="copy", PIP_DISABLE_PIP_VERSION_CHECK="1")
    if subprocess.run(command, env=environment, cwd=ROOT).returncode:
        raise CannotInstall(diagnosis())


def diagnosis():
    if shutil.disk_usage(ROOT).free < 200 * 10**6:
        return "the disk that holds {} is full. Free about {} MB and run make again.".format(ROOT, DISK_NEEDED_MB)
    if not registry_answers():
        return (
            "the package registry cannot be reached. Check the network, a proxy (HTTPS_PROXY) or a mirror "
            "(PIP_INDEX_URL, UV_DEFAULT_INDEX), and run make again: it goes on where it stopped."
        )
    return "a package could not be installed; the reason is above. Mend it and run make again."


def registry_answers():
    with tempfile.TemporaryDirectory() as folder:
        return succeeds(
            [VENV_PYTHON, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--retries", "0", "-d", folder, "six"]
        )


def succeeds(command):
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def say(text):
    sys.stdout.write("tenantry: {}\n".format(text))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
