"""Pure values that every layer may know; no I/O."""
