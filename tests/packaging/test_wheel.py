"""What people install: a wheel, in an environment and a folder that know nothing of the checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).parents[2]
_SHIPPED_SQL = {
    str(path.relative_to(_CHECKOUT)): path.read_text(encoding="utf-8") for path in (_CHECKOUT / "sql").rglob("*.sql")
}


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program without our environment's hints at the checkout; a failure shows what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GENDURABLE"))}
    done = subprocess.run(
        [str(word) for word in command], check=False, capture_output=True, text=True, cwd=cwd, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """A folder with the wheel and the source distribution of the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", folder, cwd=_CHECKOUT)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (found,) = distributions.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory) -> Path:
    """A fresh environment's programs, with the wheel installed and our dependencies borrowed."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    # A path file lends the dependencies without a network; path files of the borrowed folder itself (such as that
    # of an editable install) are not read, and the fresh environment's own folder comes first.
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (own / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin"


def test_the_wheel_carries_every_statement_and_migration(wheel):
    """A wheel without its SQL imports and then fails at the first query."""
    with zipfile.ZipFile(wheel) as archive:
        shipped = {
            name.removeprefix("gendurable/"): archive.read(name).decode()
            for name in archive.namelist()
            if name.endswith(".sql")
        }

    assert shipped == _SHIPPED_SQL
    assert len(shipped) > 1


def test_the_wheel_carries_types_and_licence_and_nothing_else(wheel):
    """A top-level ``tests`` or ``sql`` in site-packages would shadow the user's own."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert {name.split("/")[0] for name in names} == {"gendurable", "gendurable-0.1.0.dist-info"}
    assert "gendurable/py.typed" in names
    assert "gendurable-0.1.0.dist-info/licenses/LICENSE" in names


def test_the_source_distribution_builds_the_same_wheel(distributions, wheel, tmp_path):
    """Distributions of Linux build from source."""
    (archive_path,) = distributions.glob("*.tar.gz")
    run("tar", "-xzf", archive_path, cwd=tmp_path)
    (source,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=source)
    (again,) = (tmp_path / "again").glob("*.whl")

    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())


def test_the_installed_package_finds_its_statements(installed, tmp_path):
    """The loader looks beside the package, not beside the folder one happens to be in."""
    program = (
        "import gendurable\n"
        "from gendurable.store.sql import STATEMENTS\n"
        "print(gendurable.__file__)\n"
        "print(*sorted(STATEMENTS))\n"
    )
    where, names = run(installed / "python", "-c", program, cwd=tmp_path).splitlines()

    assert Path(where).is_relative_to(installed.parent)
    assert len(names.split()) > 0
    assert all(f"-- name: {name}\n" in "".join(_SHIPPED_SQL.values()) for name in names.split())


def test_the_installed_command_prints_the_migrations(installed, tmp_path):
    """A database administrator reviews the schema from an installed package, without a database."""
    printed = run(installed / "gendurable", "migrate", "sql", cwd=tmp_path)

    assert "create table gendurable.gen_durable" in printed


def test_the_installed_package_starts_an_embedded_server(installed, tmp_path):
    """The first steps in the manual are an install and a server."""
    program = (
        "from gendurable.embedded import EmbeddedPostgres\n"
        "with EmbeddedPostgres(fast_and_unsafe=True) as server:\n"
        "    print(server.server_version)\n"
    )

    assert run(installed / "python", "-W", "error", "-c", program, cwd=tmp_path).startswith("18.")
