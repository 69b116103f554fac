"""A shop that takes orders from several tenants and finishes each exactly once, whatever dies meanwhile."""
