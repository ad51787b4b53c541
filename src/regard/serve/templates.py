"""The child process that renders chat templates; `chat.ChatTemplate` starts it. It imports Jinja and the standard library only.

A template is code from a model's directory. Jinja's sandbox keeps it from files and from Python's internals, but not from doubling a string
forty times or from nested loops, and constants are folded when a template is compiled. So it is compiled and rendered here, with a limit
on memory, and the parent kills the process when its time is over.

    {"call": "check" or "render", "arguments": {…}}   →   {"result": …}   or   {"error": "refused" or "memory", "message": reason}
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 512 * 2**20  # bytes of address space, of which Python and Jinja take some 50 MiB
MAX_SIZE = 2**22  # characters of a prompt


@functools.lru_cache(1)
def compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=_now)
    return environment.from_string(template)


def check(template: str) -> None:
    """Raises whatever is wrong with it."""
    compiled(template)


def render(template: str, messages: list[Any], tokens: dict[str, str], tools: list[Any]) -> str:
    text, size = [], 0
    for piece in compiled(template).generate(messages=messages, add_generation_prompt=True, tools=tools or None, documents=None, **tokens):
        text.append(piece)
        size += len(piece)
        if size > MAX_SIZE:
            raise jinja2.TemplateError(f"a prompt of more than {MAX_SIZE} characters")
    return "".join(text)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(str(form))


CALLS: dict[str, Callable[..., Any]] = {"check": check, "render": render}


def answer(call: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The result of a call; whatever a template raises is an answer too."""
    try:
        return {"result": CALLS[call](**arguments)}
    except MemoryError:
        return {"error": "memory", "message": f"it takes more than {MEMORY >> 20} MiB"}
    except Exception as wrong:
        return {"error": "refused", "message": f"{type(wrong).__name__}: {' '.join(str(wrong).split())[:200]}"}


def main() -> None:
    """Answer calls until standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print(json.dumps({"result": "ready"}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
