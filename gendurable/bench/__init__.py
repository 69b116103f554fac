"""Measurements of the engine beside its own bare SQL statements, in one run.

``scenarios`` names what can be measured, ``ground`` is the schema a run has to itself, ``child`` is what runs in
processes of their own, and ``lines`` is what comes out.
"""
