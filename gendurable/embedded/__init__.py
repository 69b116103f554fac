"""A PostgreSQL server of our own, for development and tests: found, initialised, started, adopted and stopped.

Protocol between the processes that use one directory:

* ``start.lock`` is held exclusively while anybody starts or stops the server, so one starts it and the rest adopt it.
* ``users.lock`` is held shared by every object that uses the server. The kernel drops it when its process dies,
  however it dies. Whoever leaves and can then take it exclusively was the last user, and stops the server.

The server is not a child of this process and shares no pipe and no terminal with it: a kill -9 of its starter leaves
it running, and the next start on the same directory adopts it. A server with a temporary directory that was left
behind like this is stopped and removed by the next temporary one of the same user.

SIGTERM ends a Python process without running ``finally`` blocks unless it has a handler: the server then stays, just
as after kill -9. Stopping belongs to the context manager's exit (or to ``stop``); turn the signal into an orderly end.
"""

from gendurable.embedded.server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres"]
