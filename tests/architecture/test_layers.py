"""The layers of the house, as import-linter sees them."""

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports


def test_imports_point_downwards(capsys, pytestconfig, monkeypatch):
    """A layer that knows what lies above it can be neither read nor tested alone."""
    monkeypatch.chdir(pytestconfig.rootpath)

    status = lint_imports(config_filename="pyproject.toml", no_cache=True)

    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out
