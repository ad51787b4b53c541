"""Completion and serving: GPT-2 small's shape in regard, transformers' `generate` and CTranslate2, then clients of a server.

Run:  python -m benchmarks.serving [--quick]      writes the section `serving` of RESULTS.md;  --quick: a small model, only printed
GPT-2 small (124 M), the same random parameters for all, 64 tokens in, 64 out, greedy decoding without an end token.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import torch

from regard import load
from regard.compare.measure import Timing, seconds_of
from regard.data import Tokenizer, Tokenizers
from regard.decode import Engine, EngineOptions, GenerationOptions, Request, quantize
from regard.models import LanguageModel
from regard.runs import save
from regard.tasks import TextProcessor, make_run

from ._common import NOT_INSTALLED, TIMEOUT, child, installed, machine, progress, write

LENGTH, NEW = 64, 64
BATCHES = (1, 8)
CLIENTS, TOKENS = 16, 48
SMALL = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 5000, "n_positions": 256}  # for --quick
Ids = list[list[int]]
PROGRAMS = {  # name → the program it is compared with
    "regard, float32": "transformers generate, float32",
    "regard, float32_packed": "transformers generate, float32",
    "regard, float16x2": "transformers generate, float32",
    "transformers generate, float32": "",
    "regard, int8": "CTranslate2, int8",
    "CTranslate2, int8": "",
}
PACKAGES = {"transformers generate, float32": "transformers", "CTranslate2, int8": "ctranslate2"}


def make(folder: Path, quick: bool) -> None:
    """The same model for all: a checkpoint of transformers, and a run for the server."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    theirs = GPT2LMHeadModel(GPT2Config(**(SMALL if quick else {}), bos_token_id=0, eos_token_id=0)).eval()
    theirs.save_pretrained(folder / "theirs")
    ours = load(folder / "theirs")
    save(make_run("language", ours, TextProcessor(Tokenizers(Tokenizer.train([], "byte", 260)))), folder / "run")


def prompts(batch: int, vocab_size: int) -> Ids:
    return torch.randint(1, vocab_size, (batch, LENGTH), generator=torch.Generator().manual_seed(batch)).tolist()  # type: ignore[no-any-return]


# -- one process per program -----------------------------------------------------------------------------------------------------


def regards(folder: Path, weights: Any) -> tuple[int, Callable[[Ids, int], Ids]]:
    model = load(folder / "theirs")
    assert isinstance(model, LanguageModel)
    light = quantize(model, weights)

    def run(given: Ids, new: int) -> Ids:
        engine = Engine(light, str, EngineOptions(prefill_chunk=LENGTH * len(given)), eos_ids=(), banned_ids=())
        rows = [engine.submit(Request(prompt=ids, options=GenerationOptions(max_tokens=new, temperature=0)))[0] for ids in given]
        while engine.busy:
            engine.step()
        return [row.ids for row in rows]

    return model.config.vocab_size, run


def generates(folder: Path) -> tuple[int, Callable[[Ids, int], Ids]]:
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder / "theirs").eval()

    def run(given: Ids, new: int) -> Ids:
        ids_BL = torch.tensor(given)
        with torch.no_grad():
            found = model.generate(
                ids_BL, attention_mask=torch.ones_like(ids_BL), max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0,
                eos_token_id=None,
            )  # fmt: skip
        return found[:, LENGTH:].tolist()  # type: ignore[no-any-return]

    return model.config.vocab_size, run


def ctranslates(folder: Path) -> tuple[int, Callable[[Ids, int], Ids]]:
    import ctranslate2
    from ctranslate2.converters.transformers import GPT2Loader
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder / "theirs").eval()
    vocab_size = model.config.vocab_size
    spec = GPT2Loader().get_model_spec(model)
    spec.register_vocabulary([str(n) for n in range(vocab_size)])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = "0"
    spec.validate()
    spec.optimize(quantization="int8")
    (folder / "ct2").mkdir()
    spec.save(str(folder / "ct2"))
    generator = ctranslate2.Generator(str(folder / "ct2"), device="cpu", compute_type="int8", intra_threads=torch.get_num_threads())

    def run(given: Ids, new: int) -> Ids:
        words = [[str(n) for n in ids] for ids in given]
        found = generator.generate_batch(
            words, max_length=new, min_length=new, sampling_topk=1, include_prompt_in_result=False, max_batch_size=64
        )  # fmt: skip
        return [[int(word) for word in one.sequences[0]] for one in found]

    return vocab_size, run


@cache
def program(name: str, folder: str) -> tuple[int, Callable[[Ids, int], Ids]]:
    """Vocabulary size, and a function of prompts and the number of new tokens."""
    if name.startswith("regard"):
        return regards(Path(folder), name.split()[1])
    return generates(Path(folder)) if name.startswith("transformers") else ctranslates(Path(folder))


def completed(name: str, folder: str, batch: int) -> Ids:
    """Called in a child process: of two thread pools in one process each slows the other down."""
    vocab_size, run = program(name, folder)
    return run(prompts(batch, vocab_size), NEW)


def timed(name: str, folder: str, batch: int, new: int) -> float:
    """Called in the same child process: seconds for `new` tokens of each prompt."""
    vocab_size, run = program(name, folder)
    given = prompts(batch, vocab_size)
    return seconds_of(lambda: run(given, new))


def decoding(folder: Path, rounds: int) -> list[str]:
    programs = {name: child() for name in PROGRAMS if name not in PACKAGES or installed(PACKAGES[name])}
    lines = []
    for batch in BATCHES:
        answers, whole, first = dict[str, Ids](), dict[str, list[float]](), dict[str, list[float]]()
        for name, process in programs.items():
            progress(f"completion, batch {batch}: {name}")
            answers[name] = process.call("benchmarks.serving:completed", TIMEOUT, name=name, folder=str(folder), batch=batch)
        for n in range(rounds):
            progress(f"completion, batch {batch}, round {n + 1}")
            for name, process in programs.items():
                for seconds, new in ((whole, NEW), (first, 1)):
                    taken = process.call("benchmarks.serving:timed", TIMEOUT, name=name, folder=str(folder), batch=batch, new=new)
                    seconds.setdefault(name, []).append(taken)
        timings = {name: Timing.of(each) for name, each in whole.items()}
        for name, rival in PROGRAMS.items():
            if name not in timings:
                lines.append(f"| {batch} | {name} | {NOT_INSTALLED} | | | |")
                continue
            pairs = zip(chain(*answers[name]), chain(*answers["regard, float32"]), strict=True)
            same = sum(a == b for a, b in pairs) / batch / NEW
            faster = f"**{timings[rival].median / timings[name].median:.2f}×**" if rival in timings else ""
            speed = f"{batch * NEW / timings[name].median:.1f} ±{timings[name].spread * 50:.0f} %"
            lines.append(f"| {batch} | {name} | {speed} | {statistics.median(first[name]) * 1e3:.0f} ms | {faster} | {same:.0%} |")
    for process in programs.values():
        process.close()
    return lines


# -- the server ----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server(folder: Path, weights: str) -> Iterator[int]:
    """A running `regard serve`; gives its port."""
    command = [sys.executable, "-m", "regard", "serve", str(folder / "run"), "--port", "0", "--dtype", weights, "--max-batch", str(CLIENTS)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={name: value for name, value in os.environ.items() if name != "REGARD_KEY"}
    )
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/v1", process.stdout.readline())
        assert found is not None
        yield int(found[1])
    finally:
        process.terminate()
        process.wait()


def tokens_per_second(port: int, clients: int, requests: int) -> float:
    """Tokens per second of all clients together, each sending requests one after another, with prompts of 32 letters."""

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        for n in range(requests):
            body = {"prompt": f"{number:08d}{n:08d}" * 2, "max_tokens": TOKENS, "temperature": 0, "logit_bias": {"2": -100}}
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
            assert answer["usage"]["completion_tokens"] == TOKENS, answer
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clients * requests * TOKENS / (time.perf_counter() - start)


def throughput(folder: Path, rounds: int) -> list[str]:
    lines = []
    for weights in ("float32", "int8"):
        progress(f"server, {weights}")
        with server(folder, weights) as port:
            tokens_per_second(port, CLIENTS, 1)
            one, many = [], []
            for _ in range(rounds):
                one.append(tokens_per_second(port, 1, 2))
                many.append(tokens_per_second(port, CLIENTS, 1))
        alone, together = statistics.median(one), statistics.median(many)
        lines.append(f"| {weights} | {alone:.1f} | {together:.1f} | **{together / alone:.1f}×** |")
    return lines


def milliseconds(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> float:
    """Duration of one request on a connection that is kept alive."""
    start = time.perf_counter()
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    assert response.status == 200, response.status
    return (time.perf_counter() - start) * 1e3


def gaps(connection: http.client.HTTPConnection, tokens: int) -> list[float]:
    """Milliseconds between the streamed tokens of one completion; all are the same letter, because only whole characters are sent."""
    body = {"prompt": "0123456789abcdef" * 2, "max_tokens": tokens, "temperature": 0, "logit_bias": {"100": 100}, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response, arrived = connection.getresponse(), []
    while line := response.readline():
        if line.startswith(b"data: {"):
            arrived.append(time.perf_counter())
    assert len(arrived) > tokens // 2, len(arrived)  # tokens that come faster than they are sent share an event
    return [(after - before) * 1e3 for before, after in pairwise(arrived)]


def latency(folder: Path, rounds: int) -> list[str]:
    """Medians on one connection that is kept alive; one token is also the time to the first one, and gaps are between later ones."""
    progress("server, latency")
    with server(folder, "float32") as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        one = {"prompt": "0123456789abcdef" * 2, "max_tokens": 1, "temperature": 0}
        milliseconds(connection, "POST", "/v1/completions", one)
        health = [milliseconds(connection, "GET", "/health") for _ in range(20 * rounds)]
        token = [milliseconds(connection, "POST", "/v1/completions", one) for _ in range(5 * rounds)]
        between = [gap for _ in range(rounds) for gap in gaps(connection, TOKENS)]
        connection.close()
    found = (statistics.median(health), statistics.median(token), statistics.median(between), max(between))
    return [f"| {' | '.join(f'{each:.1f} ms' for each in found)} |"]


def main() -> None:
    quick = "--quick" in sys.argv
    if not installed("transformers"):
        sys.exit("this benchmark makes its model with transformers, which is not installed: make bench installs it")
    with tempfile.TemporaryDirectory(prefix="serving-") as made:
        folder = Path(made)
        make(folder, quick)
        rounds = 1 if quick else 3
        rows, served, waits = decoding(folder, rounds), throughput(folder, rounds), latency(folder, rounds)
    lines = [
        "## Completion and serving",
        "",
        f"{(__doc__ or '').splitlines()[3]} {machine()}. Each program is a process of its own; they take turns.",
        "`float32_packed`: float32, laid out for oneDNN's matmuls. `float16x2`: each parameter as the sum of two float16 numbers, 22 bits; the error of a matmul is 2 to 4 times that of float32's own rounding.",
        "`same tokens`: as regard's in float32; int8 differs by its rounding, more so with random parameters, whose best token is hardly better than the next.",
        "",
        "| batch | | tokens per second | first token | regard is faster | same tokens |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        f"`regard serve`, prompts of 33 tokens, {TOKENS} tokens each, clients that send one request after another:",
        "",
        f"| parameters | tokens per second, one client | {CLIENTS} clients | more |",
        "|---|---|---|---|",
        *served,
        "",
        "One client on a connection that is kept alive, float32, medians:",
        "",
        "| `GET /health` | completion of one token | between streamed tokens | longest |",
        "|---|---|---|---|",
        *waits,
    ]
    write("serving", lines, quick)


if __name__ == "__main__":
    main()
