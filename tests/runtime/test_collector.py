"""The collector's pass: it walks everything that ended once, and leaves nothing out."""

from random import Random

import pytest

from gendurable.metrics import Metrics
from gendurable.runtime.collector import Collector
from gendurable.settings import CollectorSettings
from gendurable.store.database import ConnectOptions, Database
from gendurable.store.retention import RetentionStore
from tests.races.staging import TABLE, add_many


class CountingStore(RetentionStore):
    """The real store, with a count of its statements."""

    def __init__(self, database):
        super().__init__(database)
        self.batches = 0

    async def collect_finished(self, **arguments):
        self.batches += 1
        return await super().collect_finished(**arguments)


@pytest.fixture
async def store(dsn):
    database = Database(ConnectOptions(dsn=dsn))
    await database.open()
    yield CountingStore(database)
    await database.close()


def collector(store, *, batch_max):
    return Collector(settings=CollectorSettings(batch_max=batch_max), store=store, metrics=Metrics(), rng=Random(1))


async def test_rows_that_ended_in_one_commit_are_all_looked_at(connection, store):
    """They share one time: a batch that is cut between two of them must go on with the other one.

    Ten failed rows stay, because their retention is longer; the ten done ones behind them must not stay with them.
    """
    long_ago = "now() - interval '8 days'"
    kept = await add_many(connection, 10, status="'failed'", finished_at=long_ago)
    await add_many(connection, 10, status="'done'", finished_at=long_ago)
    await connection.execute(f"update {TABLE} set finished_at = (select min(finished_at) from {TABLE})")

    deleted = await collector(store, batch_max=4).pass_once()

    left = await connection.fetch(f"select id from {TABLE} order by id")
    assert (deleted, [row["id"] for row in left]) == (10, kept)


async def test_a_row_that_is_spared_is_looked_at_once_in_a_pass(connection, store):
    """Failed rows stay for longer and lie in front; walking them again for every batch would cost their square."""
    long_ago = "now() - interval '9 days'"
    await add_many(connection, 40, status="'failed'", finished_at=f"{long_ago} + n * interval '1 s'")
    gone = await add_many(connection, 40, status="'done'", finished_at=f"{long_ago} + n * interval '1 s'")
    await add_many(connection, 40, status="'done'", finished_at="now() - interval '1 day'")

    deleted = await collector(store, batch_max=10).pass_once()

    assert deleted == len(gone)
    assert store.batches == 80 // 10 + 1
