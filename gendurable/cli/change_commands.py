"""The commands that change one instance: ``insert``, ``cancel`` and ``retry``. None imports user code."""

import json
from typing import Any, NoReturn

import click

from gendurable.cli.connecting import instance_id_of, require_one_target, with_client
from gendurable.cli.options import SettingOptions, common_options
from gendurable.cli.rendering import print_json
from gendurable.errors import InvalidValueError, NotFoundError
from gendurable.machine.named import named_request
from gendurable.model.answers import Cancelled, CancelRequested, Conflict, NotCancelled, Retried
from gendurable.model.durations import parse_duration_s
from gendurable.model.insert import PRIORITY_MAX, PRIORITY_MIN, Duplicate


def _json_object(text: str) -> dict[str, Any]:
    try:
        decoded = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"it is no JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise click.BadParameter(f'it must be a JSON object such as \'{{"to": "a@example.org"}}\', not {text[:40]}')
    return decoded


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _seconds(text: str) -> float:
    try:
        return parse_duration_s(text, name="it", allow_zero=True)
    except InvalidValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("name")
@click.option(
    "--args",
    "state",
    type=_json_object,
    metavar="JSON",
    default="{}",
    help="Arguments of the job, or state of the machine.",
)
@click.option("--queue", metavar="NAME", default="default", show_default=True, help="Where it waits.")
@click.option("--key", metavar="KEY", help="Its correlation key.")
@click.option(
    "--scope", type=click.Choice(["live", "ever", "none"]), help="How long the key is taken.  [default: live]"
)
@click.option(
    "--unique-for", type=_seconds, metavar="DURATION", help="Keep the key this long instead, also after the end."
)
@click.option("--concurrency-key", metavar="KEY", help="Run one at a time with others of this key.")
@click.option(
    "--priority",
    type=click.IntRange(PRIORITY_MIN, PRIORITY_MAX),
    default=0,
    show_default=True,
    help="Lower runs first.",
)
@click.option("--delay", type=_seconds, metavar="DURATION", help="Run it this much later, such as 5m.")
@click.option("--step", metavar="STEP", default="run", show_default=True, help="Where it starts; a job has only run.")
@click.option("--fsm-version", type=click.IntRange(1), default=1, show_default=True, help="The version that runs it.")
@click.option("--tag", metavar="TAG", multiple=True, help="A label; may be repeated.")
@click.option("--metadata", type=_json_object, metavar="JSON", help="An object to look at.")
@click.option(
    "--deadline", type=_seconds, metavar="DURATION", help="End it as failed when it has not ended after this long."
)
@click.option("--expires", type=_seconds, metavar="DURATION", help="End it when it has not started after this long.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@common_options
def insert(*, options: SettingOptions, name: str, as_json: bool, **given: Any) -> None:
    """Insert one job or machine by its registered name.

    The machine's code is not loaded, so its queue, its first step and the types of its fields are not known here: name
    the queue and, for a machine, the step. Prints the id; a key that is taken prints its holder and writes nothing.
    """
    request = named_request(
        name, given["state"], version=given["fsm_version"], step=given["step"], queue=given["queue"]
    )
    named = {
        "correlation_key": given["key"],
        "scope": given["scope"],
        "unique_for": given["unique_for"],
        "concurrency_key": given["concurrency_key"],
        "priority": given["priority"],
        "delay": given["delay"],
        "tags": given["tag"],
        "metadata": given["metadata"],
        "deadline": given["deadline"],
        "expires_at": given["expires"],
    }
    chosen = {option: value for option, value in named.items() if value is not None}
    request = request.with_options(**chosen)
    answer = with_client(options, lambda client: client.insert(request))
    is_duplicate = isinstance(answer, Duplicate)
    if as_json:
        print_json({"answer": "duplicate" if is_duplicate else "inserted", "id": answer.id})
    else:
        click.echo(f"duplicate of {answer.id}" if is_duplicate else f"inserted {answer.id}")


@click.command()
@click.argument("instance_id", metavar="[ID]", type=instance_id_of, required=False)
@click.option("--key", metavar="KEY", help="The correlation key instead of the id.")
@click.option("--reason", default="cancelled from the command line", show_default=True, help="Kept with the instance.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@common_options
def cancel(*, options: SettingOptions, instance_id: int | None, key: str | None, reason: str, as_json: bool) -> None:
    """Cancel an instance; one that executes is interrupted. Exits with 1 when it had ended before."""
    require_one_target(instance_id, key)
    try:
        answer = with_client(options, lambda client: client.cancel(instance_id, key=key, reason=reason))
    except NotFoundError as error:
        raise click.ClickException(str(error) if key is None else f"no live instance has the key {key!r}") from error
    if isinstance(answer, Cancelled):
        _tell(as_json, f"cancelled {answer.id}", answer="cancelled", id=answer.id)
    elif isinstance(answer, CancelRequested):
        text = f"{answer.id} executes; it is interrupted and ends at its next commit"
        _tell(as_json, text, answer="cancel_requested", id=answer.id)
    else:
        assert isinstance(answer, NotCancelled)
        text = f"{answer.id} has ended before: {answer.status.value}"
        _tell(as_json, text, answer="not_cancelled", id=answer.id, status=answer.status.value)
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("instance_id", metavar="ID", type=instance_id_of)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@common_options
def retry(*, options: SettingOptions, instance_id: int, as_json: bool) -> None:
    """Run a failed or cancelled instance again, from the step it ended in. Exits with 1 when it cannot."""
    answer = with_client(options, lambda client: client.retry(instance_id))
    if isinstance(answer, Retried):
        _tell(as_json, f"{answer.id} is runnable again", answer="retried", id=answer.id)
        return
    if isinstance(answer, Conflict):
        text = f"{answer.id} stays as it is: its correlation key belongs to {answer.holder} now"
        _tell(as_json, text, answer="conflict", id=answer.id, holder=answer.holder)
    else:
        text = f"{answer.id} stays as it is: it is {answer.status.value}"
        _tell(as_json, text, answer="not_retried", id=answer.id, status=answer.status.value)
    raise click.exceptions.Exit(1)


def _tell(as_json: bool, text: str, **facts: object) -> None:  # noqa: FBT001 - there is nothing to swap it with
    if as_json:
        print_json(facts)
    else:
        click.echo(text)
