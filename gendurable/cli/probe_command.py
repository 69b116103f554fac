"""``gendurable probe``: the health check of a container, without a database and without curl."""

import http.client
import json
from typing import Final
from urllib.parse import urlsplit

import click

from gendurable.cli.options import SettingOptions, common_options

_ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - this is asked, not listened on
_BODY_BYTES_MAX: Final = 65_536


@click.command()
@click.option(
    "--check", type=click.Choice(["live", "ready", "startup"]), default="ready", show_default=True, help="What to ask."
)
@click.option("--url", metavar="URL", help="The whole address instead, such as http://10.0.0.7:9464/livez.")
@click.option("--port", type=click.IntRange(1, 65_535), help="The port on this machine.  [default: as configured]")
@click.option("--timeout", "timeout_s", type=float, default=3.0, show_default=True, metavar="SECONDS")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@common_options
def probe(
    *, options: SettingOptions, check: str, url: str | None, port: int | None, timeout_s: float, as_json: bool
) -> None:
    """Ask a running worker whether it is well. Exits with 0 when it is, else with 1."""
    if url is None:
        process = options.load().settings.process
        if not (port or process.http_port):
            raise click.UsageError("The configured port is 0, any free one: give --port as the worker logged it.")
        host = "127.0.0.1" if port is not None else _ANY_HOST.get(process.http_host, process.http_host)
        address = f"[{host}]" if ":" in host else host
        path = {"live": "livez", "ready": "readyz", "startup": "startupz"}[check]
        url = f"http://{address}:{port or process.http_port}/{path}"
    status, reasons = _ask(url, timeout_s)
    if as_json:
        click.echo(json.dumps({"ok": status == 200, "status": status, "reasons": reasons, "url": url}))
    else:
        click.echo(f"{url}: {'ok' if status == 200 else '; '.join(reasons) or f'HTTP {status}'}")
    if status != 200:
        raise click.exceptions.Exit(1)


def _ask(url: str, timeout_s: float) -> tuple[int | None, list[str]]:
    """The answer's status and the reasons in it; None and the trouble when there was no answer."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise click.UsageError(f"--url must start with http://, not {url!r}.")
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout_s)
    try:
        connection.request("GET", parts.path or "/readyz")
        answer = connection.getresponse()
        body = answer.read(_BODY_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        return None, [f"no answer: {error}"]
    finally:
        connection.close()
    try:
        reasons = json.loads(body).get("reasons", [])
    except (ValueError, AttributeError):
        reasons = []
    return answer.status, [str(reason) for reason in reasons]
