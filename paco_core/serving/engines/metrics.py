"""What the embedded server counts for Prometheus (``GET /metrics``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Tally(Collector):
    """A counter that something else keeps, read when it is asked for."""

    name: str
    text: str
    read: Callable[[], int]

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self.name, self.text, value=self.read())


class ServerMetrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter("paco_requests", "Requests by HTTP status", ["status"], registry=self._registry)
        self.refused = Counter("paco_refused", "Refused requests by cause", ["cause"], registry=self._registry)
        self.latency = Histogram("paco_request_seconds", "Time to answer", buckets=LATENCIES, registry=self._registry)
        self.batch = Histogram("paco_batch_size", "Requests a forward pass", buckets=BATCHES, registry=self._registry)

    def tally(self, name: str, text: str, read: Callable[[], int]) -> None:
        """Also report what ``read`` returns, as the counter ``name``."""
        self._registry.register(Tally(name, text, read))

    def text(self) -> bytes:
        return generate_latest(self._registry)
