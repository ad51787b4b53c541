"""The child process that tries grammars of requests; `grammar_check.GrammarCheck` starts it.

A short schema may take minutes to compile ({"multipleOf": 9999991} takes two minutes), and nothing can stop it inside this process. So a
grammar is compiled here first, for single bytes as tokens, with a limit on memory, and the parent kills the process when its time is over.

    {"call": "check", "arguments": {"source": …}}   →   {"result": null}   or   {"error": "refused" or "memory", "message": reason}
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from functools import cache
from typing import Any

from regard.decode.guided import Vocabulary, new_matcher
from regard.errors import RegardError

MEMORY = 2**31  # bytes of address space, of which Python and NumPy take some hundred MiB


@cache
def byte_tokenizer() -> Any:
    return Vocabulary([bytes([byte]) for byte in range(256)], []).tokenizer()


def answer(call: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The result of a call; whatever a grammar raises is an answer too."""
    try:
        new_matcher(byte_tokenizer(), arguments["source"]).compute_bitmask()
    except MemoryError:
        return {"error": "memory", "message": f"it takes more than {MEMORY >> 20} MiB"}
    except RegardError as wrong:
        return {"error": "refused", "message": str(wrong)}
    return {"result": None}


def main() -> None:
    """Answer calls until standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    byte_tokenizer()
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print(json.dumps({"result": "ready"}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
