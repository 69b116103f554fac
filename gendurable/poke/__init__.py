"""Wake-ups: how a process learns that there is work."""
