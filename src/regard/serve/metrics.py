"""Counters, in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from collections import Counter

HELP = {
    "requests_total": ("counter", "requests answered, by route and status"),
    "prompt_tokens_total": ("counter", "tokens of prompts"),
    "completion_tokens_total": ("counter", "tokens written"),
    "steps_total": ("counter", "steps of the engine"),
    "step_seconds_total": ("counter", "time they took"),
    "first_token_seconds_sum": ("counter", "time from a request to its first text, in all"),
    "first_token_seconds_count": ("counter", "requests that got text"),
    "rows_running": ("gauge", "answers being written"),
    "prompts_waiting": ("gauge", "prompts that wait for a place"),
    "prompts_open": ("gauge", "prompts asked for and not yet answered"),
}


class Metrics:
    """Numbers that several threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}
        self._requests: Counter[tuple[str, int]] = Counter()
        self._gauges = {"rows_running": 0, "prompts_waiting": 0}

    def requested(self, route: str, status: int) -> None:
        with self._lock:
            self._requests[route, status] += 1

    def used(self, prompt: int, completion: int) -> None:
        self._add(prompt_tokens_total=prompt, completion_tokens_total=completion)

    def waited(self, seconds: float) -> None:
        self._add(first_token_seconds_sum=seconds, first_token_seconds_count=1)

    def stepped(self, seconds: float) -> None:
        self._add(steps_total=1, step_seconds_total=seconds)

    def held(self, running: int, waiting: int) -> None:
        with self._lock:
            self._gauges.update(rows_running=running, prompts_waiting=waiting)

    def _add(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._values[name] = self._values.get(name, 0) + amount

    def text(self, **gauges: int) -> str:
        with self._lock:
            plain = {**self._values, **self._gauges, **gauges}
            requests = dict(self._requests)
        lines = []
        for name, (kind, meaning) in HELP.items():
            lines += [f"# HELP regard_{name} {meaning}", f"# TYPE regard_{name} {kind}"]
            if name == "requests_total":
                lines += [f'regard_{name}{{route="{route}",status="{status}"}} {n}' for (route, status), n in sorted(requests.items())]
            else:
                lines.append(f"regard_{name} {plain.get(name, 0):.10g}")
        return "\n".join(lines) + "\n"
