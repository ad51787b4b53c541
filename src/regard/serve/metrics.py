"""Metrics of one server, in a registry of its own."""

from __future__ import annotations

from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """Counters, gauges and timings; several threads may update them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        to: Any = {"namespace": "regard", "registry": self.registry}
        self.requests = Counter("requests", "HTTP requests, by route and status", ("route", "status"), **to)
        self.prompt_tokens = Counter("prompt_tokens", "Prompt tokens read", **to)
        self.completion_tokens = Counter("completion_tokens", "Tokens generated", **to)
        self.step_seconds = Summary("step_seconds", "Duration of the engine's steps", **to)
        self.time_to_first_token = Histogram("time_to_first_token_seconds", "Time from a request to its first text", **to)
        self.completions_running = Gauge("completions_running", "Completions in progress", **to)
        self.prompts_queued = Gauge("prompts_queued", "Prompts waiting in the queue", **to)
        self.prompts_open = Gauge("prompts_open", "Prompts accepted and not yet answered", **to)

    def add_usage(self, usage: dict[str, int]) -> None:
        self.prompt_tokens.inc(usage["prompt_tokens"])
        self.completion_tokens.inc(usage["completion_tokens"])

    def set_load(self, running: int, queued: int) -> None:
        self.completions_running.set(running)
        self.prompts_queued.set(queued)

    def text(self) -> bytes:
        return generate_latest(self.registry)
