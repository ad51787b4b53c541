"""The child's side of `Child`: `python -m regard.compare.child THREADS MIB` answers each line of JSON with another.

    {"call": "package.module:function", "arguments": {…}}   →   {"result": …}   or   {"error": kind, "message": reason}

Kinds: refused (a RegardError: not supported), memory (over the limit), failed (any other exception).
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any

import torch

from ..errors import RegardError
from .measure import limit_memory


def main(threads: int, mib: float) -> None:
    """Answer calls until standard input is closed."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a called function prints must not get between the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then kills this process
    torch.set_num_threads(threads)
    if mib:
        limit_memory(mib)
    print(json.dumps({"result": "ready"}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), file=answers, flush=True)


def answer(call: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call the function; every exception becomes an answer."""
    try:
        return {"result": resolve(call)(**arguments)}
    except RegardError as error:
        return {"error": "refused", "message": str(error)}
    except Exception as error:
        if out_of_memory(error):
            return {"error": "memory", "message": "ran out of the memory it is allowed"}
        traceback.print_exc()
        return {"error": "failed", "message": f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]}


def out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed; PyTorch raises no MemoryError."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def resolve(address: str) -> Any:
    """The object that "package.module:Name" names."""
    module, _, name = address.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
