"""Minutes of real work under random kills, checked against a ledger."""
