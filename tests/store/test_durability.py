"""What waits for the disk and what does not."""

from gendurable.store.claims import SCAN_START
from gendurable.store.sql import catalog
from tests.races.staging import add_row

_CLAIM = ("default", 1, "me", 30_000, SCAN_START.priority, SCAN_START.eligible_at, SCAN_START.id, True, [])


async def test_a_claim_leaves_the_disk_out_of_its_own_transaction_only(connection):
    """A setting that outlived the claim would let an outcome on the same connection be lost after it was answered."""
    await connection.execute("set synchronous_commit = on")
    await add_row(connection)
    await add_row(connection)
    claim = catalog().text("claim_runnable")

    async with connection.transaction():
        await connection.fetch(claim, *_CLAIM)
        inside = await connection.fetchval("show synchronous_commit")
    claimed = await connection.fetch(claim, *_CLAIM)
    after = await connection.fetchval("show synchronous_commit")

    assert (inside, after) == ("off", "on")
    assert [row["answer"] for row in claimed] == ["claimed", "next"]
