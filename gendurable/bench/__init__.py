"""Measurements of the engine against the bare SQL loop, in one run."""
