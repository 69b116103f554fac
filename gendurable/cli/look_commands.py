"""The commands that only look: ``show``, ``list``, ``queues``, ``machines`` and ``nodes``."""

from typing import Final

import click
import msgspec

from gendurable.cli.connecting import instance_id_of, require_one_target, with_client
from gendurable.cli.options import SettingOptions, common_options
from gendurable.cli.rendering import print_fields, print_json, print_table
from gendurable.model.instance import Instance, Status
from gendurable.reading import PAGE_ROWS, PAGE_ROWS_MAX
from gendurable.store.fleet import FleetStore

_STATUSES: Final = [status.value for status in Status]


@click.command()
@click.argument("instance_id", metavar="[ID]", type=instance_id_of, required=False)
@click.option("--key", metavar="KEY", help="The correlation key instead of the id.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@common_options
def show(*, options: SettingOptions, instance_id: int | None, key: str | None, as_json: bool) -> None:
    """Show one instance. Exits with 1 when there is none."""
    require_one_target(instance_id, key)
    instance = with_client(options, lambda client: client.get(instance_id, key=key))
    if instance is None:
        what = f"instance {instance_id}" if key is None else f"an instance with the key {key!r}"
        raise click.ClickException(f"{what} does not exist: it never did, or its retention has passed")
    if as_json:
        print_json(instance)
    else:
        print_fields(msgspec.to_builtins(instance, builtin_types=()) | _moments(instance))


def _moments(instance: Instance) -> dict[str, object]:
    """The times as times, so that they are printed alike everywhere."""
    names = [name for name in instance.__struct_fields__ if name.endswith("_at")]
    return {name: getattr(instance, name) for name in names}


@click.command("list")
@click.option("--machine", metavar="NAME", help="Only this machine's or job's.")
@click.option("--status", type=click.Choice(_STATUSES), multiple=True, help="Only this status; may be repeated.")
@click.option("--queue", metavar="NAME", help="Only this queue's.")
@click.option("--tag", metavar="TAG", multiple=True, help="Only those with this tag; repeated: with all of them.")
@click.option("--key-prefix", metavar="TEXT", help="Only those whose correlation key starts with this.")
@click.option(
    "--limit", type=click.IntRange(1, PAGE_ROWS_MAX), default=PAGE_ROWS, show_default=True, help="Rows at most."
)
@click.option("--before", metavar="ID", type=instance_id_of, help="Only older ones: the last id of the previous page.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, one object for each instance.")
@common_options
def list_(
    *,
    options: SettingOptions,
    machine: str | None,
    status: tuple[str, ...],
    queue: str | None,
    tag: tuple[str, ...],
    key_prefix: str | None,
    limit: int,
    before: int | None,
    as_json: bool,
) -> None:
    """List instances, youngest first."""
    found = with_client(
        options,
        lambda client: client.list(
            machine=machine,
            status=status or None,
            queue=queue,
            tags=tag or None,
            key_prefix=key_prefix,
            before_id=before,
            limit=limit,
        ),
    )
    if as_json:
        for instance in found:
            click.echo(msgspec.json.encode(instance).decode())
        return
    print_table(
        ["id", "machine", "step", "status", "queue", "attempt", "key", "inserted", "error"],
        [
            (
                i.id,
                i.machine,
                i.step,
                i.status.value,
                i.queue,
                i.attempt,
                i.correlation_key,
                i.inserted_at,
                i.last_error,
            )
            for i in found
        ],
        nothing="no instances",
    )


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@common_options
def queues(*, options: SettingOptions, as_json: bool) -> None:
    """Show what each queue holds: reads every live row."""
    found = with_client(options, lambda client: FleetStore(client.database).queues())
    if as_json:
        print_json(found)
        return
    print_table(
        ["queue", "due", "scheduled", "held", "executing", "waiting", "oldest due s", "paused"],
        [(q.queue, q.runnable, q.scheduled, q.held, q.executing, q.waiting, q.oldest_due_s, q.paused) for q in found],
        nothing="no queues: nothing is live",
    )


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@common_options
def machines(*, options: SettingOptions, as_json: bool) -> None:
    """Count live instances by machine, version, step and status: what a deploy has to be able to run."""
    found = with_client(options, lambda client: FleetStore(client.database).machines())
    if as_json:
        print_json(found)
        return
    print_table(
        ["machine", "version", "step", "status", "rows"],
        [(m.machine, m.version, m.step, m.status, m.rows) for m in found],
        nothing="no machines: nothing is live",
    )


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@common_options
def nodes(*, options: SettingOptions, as_json: bool) -> None:
    """List the processes of the fleet, youngest first."""
    found = with_client(options, lambda client: FleetStore(client.database).nodes())
    if as_json:
        print_json(found)
        return
    print_table(
        ["node", "pid", "host", "version", "queues", "started", "last beat", "alive", "executing"],
        [(n.node, n.pid, n.host, n.version, n.queues, n.started_at, n.beat_at, n.is_alive, n.executing) for n in found],
        nothing="no processes",
    )
