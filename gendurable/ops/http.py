"""The HTTP port: probes and metrics, served from the worker's own event loop and closed last."""

import contextlib
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import uvicorn
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gendurable.errors import ConfigurationError
from gendurable.logs import get_logger
from gendurable.metrics import Metrics
from gendurable.ops.health import Health

log = get_logger(__name__)

STOP_S: Final = 2.0


class _EngineCollector(Collector):
    """Our own counts, for the official client's registry."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.collect()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the worker decides what a signal means."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def exposition_registry(metrics: Metrics) -> CollectorRegistry:
    """Everything that ``/metrics`` shows: the engine's numbers, and those of the process and of Python."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_EngineCollector(metrics))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def build_app(health: Health, metrics: Metrics, *, on_scrape: Callable[[], None]) -> Starlette:
    """The application behind the port.

    Args:
        health: What the probes answer from.
        metrics: What ``/metrics`` shows.
        on_scrape: Told about every scrape.
    """
    registry = exposition_registry(metrics)

    def probe(why_not: Callable[[], list[str]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(_request: Request) -> Response:
            reasons = why_not()
            body = {"status": "unavailable", "reasons": reasons} if reasons else {"status": "ok"}
            return Response(json.dumps(body) + "\n", 503 if reasons else 200, media_type="application/json")

        return answer

    async def metrics_page(request: Request) -> Response:
        on_scrape()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return Starlette(
        routes=[
            Route("/livez", probe(health.why_not_alive)),
            Route("/readyz", probe(health.why_not_ready)),
            Route("/startupz", probe(health.why_not_started)),
            Route("/metrics", metrics_page),
        ]
    )


class HttpPort:
    """One listening socket and the server on it."""

    def __init__(self, app: Starlette, *, host: str, port: int) -> None:
        """Listen; port 0 takes any free one.

        Raises:
            ConfigurationError: The address cannot be listened on; nothing is left open.
        """
        self.name = "http"
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self._socket = socket.create_server(address[:2], family=family, backlog=128)
        except OSError as error:
            raise ConfigurationError(
                f"process.http_host and process.http_port: cannot listen on {host}:{port}: {error.strerror or error};"
                " choose another with --http-port, 0 for any free one, or use --no-http"
            ) from error
        self._server = _Server(
            uvicorn.Config(
                app,
                loop="none",
                http="h11",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(STOP_S),
            )
        )
        self.host, self.port = self._socket.getsockname()[:2]

    async def run(self) -> None:
        """Serve until drained."""
        log.info("http port listening", host=self.host, port=self.port)
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()

    def drain(self) -> None:
        """Close the port; requests under way are answered."""
        self._server.should_exit = True
