"""What users write: machines, steps, jobs, their context and the registry."""
