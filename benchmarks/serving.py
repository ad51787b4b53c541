"""Completion and serving: GPT-2 small's shape in regard, transformers' `generate` and CTranslate2, then clients of a server.

Run:  python -m benchmarks.serving           writes the section `serving` of RESULTS.md;  --quick tries it with a small model, and writes nothing
GPT-2 small (124 M), weights at random and the same for all, 64 tokens in, 64 out, the best token each time; nothing ends by itself.
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
from pathlib import Path
from typing import Any

import torch

from regard.data import Tokenizer, Tokenizers
from regard.decode import Engine, Request, Sampling, lightened
from regard.interop import load
from regard.models import LanguageModel, config_of
from regard.tasks.run import write_config
from regard.train.weights import weights_of

from ._measure import machine, write

LENGTH, NEW = 64, 64
BATCHES = (1, 8)
CLIENTS, TOKENS = 16, 48
SMALL = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 5000, "n_positions": 256}  # for --quick
Ids = list[list[int]]
PROGRAMS = {  # name → (who it is compared with, bar)
    "regard, float32": ("transformers generate, float32", "≥ 1.2×"),
    "regard, packed": ("transformers generate, float32", "≥ 1.2×"),
    "regard, halves": ("transformers generate, float32", "≥ 1.2×"),
    "transformers generate, float32": ("", ""),
    "regard, int8": ("CTranslate2, int8", "≥ 1×"),
    "CTranslate2, int8": ("", ""),
}


def make(folder: Path, quick: bool) -> None:
    """The same model for all: a directory of transformers, and a run for the server."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    theirs = GPT2LMHeadModel(GPT2Config(**(SMALL if quick else {}), bos_token_id=0, eos_token_id=0)).eval()
    theirs.save_pretrained(folder / "theirs")
    ours = load(folder / "theirs")
    write_config(folder / "run", "language", {}, config_of(ours), {})
    from safetensors.torch import save_file

    save_file(weights_of(ours), folder / "run" / "model.safetensors")
    Tokenizers(Tokenizer.train([], "bytes", 260)).save(folder / "run" / "tokenizer.json")


def prompts(batch: int, vocab: int) -> Ids:
    return torch.randint(1, vocab, (batch, LENGTH), generator=torch.Generator().manual_seed(batch)).tolist()  # type: ignore[no-any-return]


# -- one program a process -----------------------------------------------------------------------------------------------------


def regards(folder: Path, weights: Any) -> tuple[int, Callable[[Ids, int], Ids]]:
    model = load(folder / "theirs")
    assert isinstance(model, LanguageModel)
    light = lightened(model, weights)

    def run(given: Ids, new: int) -> Ids:
        engine = Engine(light, str, ends=(), never=(), chunk=LENGTH * len(given))
        rows = [engine.submit(Request(prompt=ids, most=new, sampling=Sampling(temperature=0)))[0] for ids in given]
        while engine.busy:
            engine.step()
        return [row.ids for row in rows]

    return model.config.vocab, run


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
    vocab = model.config.vocab_size
    spec = GPT2Loader().get_model_spec(model)
    spec.register_vocabulary([str(n) for n in range(vocab)])
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

    return vocab, run


def child(name: str, folder: Path) -> None:
    """Answer requests on standard input, (batch, tokens, repeats) each: seconds a run, and the answers."""
    if name.startswith("regard"):
        vocab, run = regards(folder, name.split()[1])
    else:
        vocab, run = generates(folder) if name.startswith("transformers") else ctranslates(folder)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        batch, new, repeats = json.loads(line)
        given, found = prompts(batch, vocab), []
        start = time.perf_counter()
        for _ in range(repeats):
            found = run(given, new)
        print(json.dumps([(time.perf_counter() - start) / repeats, found]), flush=True)


class Program:
    """A child process. They take turns: of two thread pools in one process each slows the other down."""

    def __init__(self, name: str, folder: Path):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serving", name, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.read()

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(next(line for line in self.process.stdout if line.startswith(("[", '"ready'))))

    def run(self, batch: int, new: int, repeats: int = 1) -> tuple[float, Ids]:
        assert self.process.stdin is not None
        print(json.dumps([batch, new, repeats]), file=self.process.stdin, flush=True)
        seconds, found = self.read()
        return seconds, found


def decoding(folder: Path, rounds: int) -> list[str]:
    programs = {name: Program(name, folder) for name in PROGRAMS}
    lines = []
    for batch in BATCHES:
        answers = {name: program.run(batch, NEW)[1] for name, program in programs.items()}
        whole: dict[str, list[float]] = {name: [] for name in programs}
        first: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(rounds):
            for name, program in programs.items():
                whole[name].append(program.run(batch, NEW)[0])
                first[name].append(program.run(batch, 1)[0])
        median = {name: statistics.median(all_) for name, all_ in whole.items()}
        for name, (rival, bar) in PROGRAMS.items():
            same = sum(
                a == b for one, two in zip(answers[name], answers["regard, float32"], strict=True) for a, b in zip(one, two, strict=True)
            )
            spread = (max(whole[name]) - min(whole[name])) / median[name] * 50
            said = f"**{median[rival] / median[name]:.2f}×** | {bar}" if rival else " | "
            lines.append(
                f"| {batch} | {name} | {batch * NEW / median[name]:.1f} ±{spread:.0f} % | {statistics.median(first[name]) * 1e3:.0f} ms | {said} | "
                f"{same / batch / NEW:.0%} |"
            )
    for program in programs.values():
        program.process.kill()
        program.process.wait()
    return lines


# -- the server ----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server(folder: Path, weights: str) -> Iterator[int]:
    """Its port."""
    command = [sys.executable, "-m", "regard", "serve", str(folder / "run"), "--port", "0", "--weights", weights, "--rows", str(CLIENTS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "REGARD_KEY": ""})
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/v1", process.stdout.readline())
        assert found is not None
        yield int(found[1])
    finally:
        process.terminate()
        process.wait()


def asked(port: int, clients: int, requests: int) -> float:
    """Tokens a second that so many clients get together, each asking again and again, by text of 32 letters."""

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
        with server(folder, weights) as port:
            asked(port, CLIENTS, 1)
            one, many = [], []
            for _ in range(rounds):
                one.append(asked(port, 1, 2))
                many.append(asked(port, CLIENTS, 1))
        alone, together = statistics.median(one), statistics.median(many)
        lines.append(f"| {weights} | {alone:.1f} | {together:.1f} | **{together / alone:.1f}×** | ≥ 4× |")
    return lines


def main() -> None:
    if len(sys.argv) > 2:
        child(sys.argv[1], Path(sys.argv[2]))
        return
    quick = "--quick" in sys.argv
    with tempfile.TemporaryDirectory(prefix="serving-") as made:
        folder = Path(made)
        make(folder, quick)
        rounds = 1 if quick else 3
        rows, served = decoding(folder, rounds), throughput(folder, 1 if quick else 3)
    lines = [
        "## Completion and serving",
        "",
        f"{(__doc__ or '').splitlines()[3]} {machine()}. Each program is a process of its own; they take turns.",
        "`packed`: float32, laid out for oneDNN's products. `halves`: each weight as the sum of two float16 numbers, 22 bits; the products' error is 2 to 4 times that of float32's own rounding.",
        "`same tokens`: as regard's in float32, of which int8 differs by its rounding, more so with weights at random, whose best token is hardly better than the next.",
        "",
        "| batch | | tokens a second | first token | regard is faster | bar | same tokens |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"`regard serve`, prompts of 33 tokens, {TOKENS} tokens each, by clients that ask again and again:",
        "",
        f"| weights | tokens a second, one client | {CLIENTS} clients | more | bar |",
        "|---|---|---|---|---|",
        *served,
    ]
    if quick:
        print("\n".join(lines))
    else:
        write("serving", lines)


if __name__ == "__main__":
    main()
