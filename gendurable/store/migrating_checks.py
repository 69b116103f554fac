"""What is decided about a record of migrations and about the objects of a schema, without asking Postgres."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from gendurable.errors import MigrationError
from gendurable.store.database import Row
from gendurable.store.migrating_files import Migration

Objects: TypeAlias = Mapping[tuple[str, str], tuple[str, bool]]
"""Kind and name to definition and validity."""


def edited(migration: Migration, row: Row) -> str | None:
    """What is wrong when the file is not the one that was applied."""
    if row["name"] != migration.name:
        return f"migration {migration.label} was applied as {row['number']:04d}_{row['name']}: restore the file's name"
    if row["checksum"] != migration.checksum:
        return (
            f"migration {migration.label} was edited after it was applied on {row['applied_at']:%Y-%m-%d}: restore the"
            " file, and put the change into a new one"
        )
    return None


def history_problems(known: Sequence[Migration], applied: Sequence[Row]) -> list[str]:
    """What is wrong with the record: edited files, and gaps."""
    by_number = {row["number"]: row for row in applied}
    gaps = [number for number in range(1, max(by_number, default=0)) if number not in by_number]
    problems = [
        f"migration {number:04d} is missing from the record, though {max(by_number):04d} is applied" for number in gaps
    ]
    edits = [edited(m, by_number[m.number]) for m in known if m.number in by_number]
    return problems + [problem for problem in edits if problem is not None]


def pending_after(known: Sequence[Migration], applied: Sequence[Row]) -> list[Migration]:
    """What is left to apply, in order; refuses a record that cannot be continued."""
    if problems := history_problems(known, applied):
        raise MigrationError("; ".join(problems))
    return list(known[len(applied) :])


def doomed_after(known: Sequence[Migration], applied: Sequence[Row], last: int) -> list[Migration]:
    """What is to be taken back, the last first; refuses what cannot be."""
    by_number = {migration.number: migration for migration in known}
    doomed = []
    for row in reversed(applied):
        if row["number"] <= last:
            break
        migration = by_number.get(row["number"])
        label = f"{row['number']:04d}_{row['name']}"
        if migration is None or migration.name != row["name"]:
            raise MigrationError(f"migration {label} came with another version: take it back with that one")
        if migration.down is None:
            raise MigrationError(f"migration {label} has no script that takes it back")
        doomed.append(migration)
    return doomed


def described(rows: Sequence[Row], *, renamed: tuple[str, str] | None = None) -> Objects:
    """Objects by kind and name; ``renamed`` puts a schema's name in the place of the one they were made in."""

    def settled(text: str) -> str:
        return text if renamed is None else text.replace(f"{renamed[0]}.", f"{renamed[1]}.")

    return {(row["kind"], settled(row["name"])): (settled(row["definition"]), row["is_valid"]) for row in rows}


def differences(expected: Objects, found: Objects, *, is_definition_compared: bool) -> list[str]:
    """One sentence for each object that is missing, different or invalid."""
    problems = []
    tables = {name for kind, name in expected if kind == "table"}
    lost_tables = {name for name in tables if ("table", name) not in found}
    for (kind, name), (definition, _) in expected.items():
        if (kind, name) not in found:
            # The columns of a missing table say nothing new.
            if kind == "table" or name.split(".")[0] not in lost_tables:
                problems.append(f"{kind} {name} is missing")
            continue
        actual, is_valid = found[kind, name]
        if not is_valid:
            problems.append(f"{kind} {name} is there but invalid")
        if is_definition_compared and actual != definition:
            is_short = len(actual) + len(definition) < 400
            problems.append(f"{kind} {name} differs" + (f": it is {actual!r}, not {definition!r}" if is_short else ""))
    return problems
