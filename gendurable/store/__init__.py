"""The only layer that speaks SQL: one class per aggregate, one method per named statement."""
