"""Durable execution for Python on PostgreSQL."""
