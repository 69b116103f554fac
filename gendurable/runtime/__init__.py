"""The services of a worker process."""
