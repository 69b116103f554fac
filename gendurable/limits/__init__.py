"""Admission limits: the protocol and its backends."""
