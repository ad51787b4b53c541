"""The commands that let a language model write: complete and serve. Each parses, calls the library, and prints."""

from __future__ import annotations

import json as json_
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional, UseAppendAction

from .errors import MissingFile, NotSupported


@dataclass(frozen=True)
class Complete:
    """Let a language model go on with a prompt: the arguments, or all of standard input as one.

    As in:  regard complete runs/book "Once upon a time" --max-tokens 100 --temperature 0.8 --stop "The end"
            regard complete runs/book --n 3 --seed 7 --json < prompt.txt
    """

    folder: Positional[Path]
    """a run directory, or one of transformers"""
    prompts: Positional[tuple[str, ...]] = ()
    """what to go on with; standard input if nothing is given"""
    max_tokens: int | None = None
    """tokens to write, at most; 100 if not given, or as many as the model reads"""
    temperature: float = 0.0
    """0 takes the best token; 1 draws as the model says"""
    top_k: int = 0
    """draw from so many of the likeliest tokens; 0 from all"""
    top_p: float = 1.0
    """draw from the likeliest tokens that have this probability together"""
    min_p: float = 0.0
    """draw from tokens at least this fraction as likely as the likeliest"""
    stop: UseAppendAction[tuple[str, ...]] = ()
    """end before this text; may be given several times"""
    n: int = 1
    """answers a prompt"""
    best_of: int | None = None
    """write so many, and show the n likeliest"""
    seed: int = 0
    """of what is drawn"""
    presence_penalty: float = 0.0
    """against tokens that were said already"""
    frequency_penalty: float = 0.0
    """against them as often as they were said"""
    echo: bool = False
    """show the prompt too"""
    lookup: int = 0
    """tokens to guess from what stood before: the same text, faster if it repeats itself"""
    weights: Literal["float32", "halves", "float16", "bfloat16", "int8"] = "float32"
    """of the model while it writes: int8 is fastest, halves as good as float32 and faster on x86"""
    json: bool = False
    """print a JSON object a line, an answer each"""

    def run(self) -> None:
        from .decode import Options, Sampling, complete, lightened, stream
        from .decode.complete import Text

        model, tokenizer = language_model(self.folder)
        model = lightened(model, self.weights)
        prompts = list(self.prompts) or [sys.stdin.read()]
        read = max(len(Text(tokenizer, model.config.vocab).ids(prompt)[0]) for prompt in prompts)
        options = Options(
            most=max(1, min(100, model.config.length - read)) if self.max_tokens is None else self.max_tokens,
            sampling=Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p, seed=self.seed),
            n=self.n,
            best_of=self.best_of,
            stops=self.stop,
            presence=self.presence_penalty,
            frequency=self.frequency_penalty,
            echo=self.echo,
        )
        if len(prompts) == options.copies == 1 and not self.json:
            for piece in stream(model, tokenizer, prompts, options, lookup=self.lookup):
                print(piece.text, end="", flush=True)
            print()
            return
        for prompt, answers in zip(prompts, complete(model, tokenizer, prompts, options, lookup=self.lookup), strict=True):
            for answer in answers:
                said = {"prompt": prompt, "text": answer.text, "finish": answer.finish, "log_prob": round(answer.log_prob, 4)}
                print(json_.dumps(said, ensure_ascii=False) if self.json else f"{answer.text}\n")


@dataclass(frozen=True)
class Serve:
    """A language model behind HTTP, as OpenAI's completions are: /v1/completions, /v1/models, /v1/attention, /health, /metrics.

    As in:  regard serve runs/book
            REGARD_KEY=$(openssl rand -hex 24) regard serve runs/book --host 0.0.0.0 --port 8080
    """

    folder: Positional[Path]
    """a run directory, or one of transformers"""
    host: str = "127.0.0.1"
    """the address to listen at; one that other machines reach needs a key"""
    port: int = 8000
    """0 takes a free one"""
    key: str | None = None
    """what clients must send as Authorization: Bearer KEY; better given as REGARD_KEY in the environment, where others cannot read it"""
    name: str | None = None
    """what the model is called; the directory's name if not given"""
    rows: int = 16
    """answers written at once"""
    positions: int = 16_384
    """tokens that they may have in all"""
    waiting: int = 64
    """prompts that may wait; more are told to come again"""
    lookup: int = 0
    """tokens to guess while there is only one answer to write"""
    weights: Literal["float32", "halves", "float16", "bfloat16", "int8"] = "float32"
    """of the model: int8 is fastest, halves as good as float32 and faster on x86"""

    def run(self) -> None:
        from .serve import serve

        key = os.environ.get("REGARD_KEY") if self.key is None else self.key
        serve(
            lambda: language_model(self.folder), self.name or self.folder.resolve().name, host=self.host, port=self.port, key=key,
            weights=self.weights, rows=self.rows, positions=self.positions, waiting=self.waiting, lookup=self.lookup,
        )  # fmt: skip


def language_model(folder: Path) -> tuple[Any, Any]:
    """The model and the tokenizer of a run, or of a directory of transformers."""
    from .interop import load, load_tokenizers
    from .models import Labeller, LanguageModel

    model, tokenizers = load(folder), load_tokenizers(folder)
    if not isinstance(model, LanguageModel):
        what = "classifier" if isinstance(model, Labeller) else model.facts.name
        raise NotSupported(f"{folder}: a {what}, which does not go on with a text; language models do, as gpt2")
    if tokenizers is None:
        raise MissingFile(
            f"{folder}: no tokenizer is there, so text cannot become tokens; save the one that the model was trained with beside it"
        )
    return model, tokenizers.source
