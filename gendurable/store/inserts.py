"""Writing new rows: one statement for any number of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from gendurable.errors import StoreContendedError
from gendurable.model.insert import Duplicate, InsertAnswer, Inserted
from gendurable.store.database import Connection, Database

LOOKUP_TRIES_MAX = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRow:
    """One row to insert.

    Attributes:
        common: Number of its common part, from 1.
        state: JSON text.
        correlation_key: The business key, or None.
        scope: ``live``, ``ever`` or ``none``.
        unique_ms: Milliseconds its key stays reserved; None as the scope says.
    """

    common: int
    state: str
    correlation_key: str | None
    scope: str
    unique_ms: int | None


class InsertStore:
    """Statements of ``sql/queries/inserts.sql``."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._db = database

    async def insert_alike(
        self, common: str, states: Sequence[str], *, connection: Connection | None = None
    ) -> list[int]:
        """Insert rows that share everything but their state; return their ids in the order of the input.

        Raises:
            StoreDataError: A value was refused; nothing was written.
            StoreUnavailableError: Nothing was written, or all of it: the commit may have been lost with the connection.
        """
        rows = await self._db.fetch("insert_alike", common, states, connection=connection)
        return sorted(row[0] for row in rows)

    async def insert_rows(
        self, commons: Sequence[str], rows: Sequence[NewRow], *, connection: Connection | None = None
    ) -> list[InsertAnswer]:
        """Insert any mix of rows; a row whose key is taken answers with the holder.

        Args:
            commons: The common parts the rows refer to.
            rows: In the order in which they are to run.
            connection: A caller's connection, whose transaction this joins.

        Raises:
            StoreContendedError: Inside a caller's REPEATABLE READ or SERIALIZABLE transaction, another transaction
                holds a key and cannot be seen; nothing was written for it.
            StoreDataError: A value was refused; nothing was written.
            StoreUnavailableError: As :meth:`insert_alike`.
        """
        answers: list[InsertAnswer | None] = [None] * len(rows)
        todo = list(range(len(rows)))
        for _ in range(LOOKUP_TRIES_MAX):
            todo = await self._insert_once(commons, rows, todo, answers, connection)
            if not todo:
                return [answer for answer in answers if answer is not None]
        raise StoreContendedError(
            f"the holder of {rows[todo[0]].correlation_key!r} changed {LOOKUP_TRIES_MAX} times or cannot be seen by"
            " this transaction; try again, in a READ COMMITTED transaction",
            constraint="gen_durable_correlation",
        )

    async def _insert_once(
        self,
        commons: Sequence[str],
        rows: Sequence[NewRow],
        todo: Sequence[int],
        answers: list[InsertAnswer | None],
        connection: Connection | None,
    ) -> list[int]:
        """Insert the rows still to do, look up the holders of those left out, and return what is to be tried again."""
        # A key twice in one input: the first place is written, the others are its duplicates.
        first_place: dict[str, int] = {}
        for place in todo:
            key = rows[place].correlation_key
            if key is not None and rows[place].scope != "none":
                first_place.setdefault(key, place)
        to_write = [
            place
            for place in todo
            if rows[place].correlation_key is None
            or rows[place].scope == "none"
            or first_place[rows[place].correlation_key or ""] == place
        ]
        written = await self._db.fetch(
            "insert_rows",
            list(commons),
            [rows[place].common for place in to_write],
            [rows[place].state for place in to_write],
            [rows[place].correlation_key for place in to_write],
            [rows[place].scope for place in to_write],
            [rows[place].unique_ms for place in to_write],
            connection=connection,
        )
        _assign(rows, to_write, [(row[0], row[1]) for row in written], answers)
        missing = sorted({key for key, place in first_place.items() if answers[place] is None})
        owners: dict[str, int] = {}
        if missing:
            found = await self._db.fetch("key_owners", missing, connection=connection)
            owners = {row["correlation_key"]: row["id"] for row in found}
        again = []
        for place in todo:
            if answers[place] is not None:
                continue
            key = rows[place].correlation_key
            assert key is not None
            winner = answers[first_place[key]]
            owner = owners.get(key) if winner is None or place == first_place[key] else winner.id
            if owner is None:
                again.append(place)
            else:
                answers[place] = Duplicate(owner)
        return again


def _assign(
    rows: Sequence[NewRow],
    places: Sequence[int],
    written: Sequence[tuple[int, str | None]],
    answers: list[InsertAnswer | None],
) -> None:
    """Match ids to places by key, and within a key by order, because ids were drawn in input order.

    One key may name a row that has it and others it merely labels; only the former can have been left out.
    """
    places_of: dict[str | None, list[int]] = {}
    for place in places:
        places_of.setdefault(rows[place].correlation_key, []).append(place)
    ids_of: dict[str | None, list[int]] = {}
    for instance_id, key in sorted(written, key=lambda pair: pair[0]):
        ids_of.setdefault(key, []).append(instance_id)
    for key, ids in ids_of.items():
        takers = places_of[key]
        if len(ids) < len(takers):
            takers = [place for place in takers if not _is_unique(rows[place])]
        for place, instance_id in zip(takers, ids, strict=True):
            answers[place] = Inserted(instance_id)


def _is_unique(row: NewRow) -> bool:
    """Whether the row's key can be refused."""
    return row.correlation_key is not None and row.scope != "none"
