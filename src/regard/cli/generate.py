"""Text generation: complete, serve."""

from __future__ import annotations

import contextlib
import json as json_
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional, UseAppendAction

from ..decode.options import EngineOptions, GenerationOptions, GuidedOptions, ParameterDtype
from ..errors import NotSupported
from ..files import check_name
from ._command import Command, print_note

if TYPE_CHECKING:
    from ..data import Tokenizer
    from ..decode import Grammar
    from ..models import LanguageModel
    from ..runs import Run

# PyTorch takes seconds to import, and help needs none of it: hence the imports inside functions.


@dataclass(frozen=True, kw_only=True)
class Complete(Command):
    """Complete prompts with a language model.

    Prompts are arguments, all of standard input as one prompt, or what is typed at a terminal.

    As in:  regard complete runs/book "Once upon a time" --max-tokens 100 --temperature 0.8 --stop "The end"
            regard complete runs/book --n 3 --seed 7 --json < prompt.txt
            regard complete runs/book "Ada is " --json-schema person.json
            regard complete runs/book
    """

    folder: Positional[Path]
    """Run directory, or a transformers directory."""
    prompts: Positional[tuple[str, ...]] = ()
    """Prompts; standard input if not given. At a terminal one line is one prompt: Ctrl-C stops a completion, Ctrl-D ends."""
    generation: UseAppendAction[GenerationOptions] = field(default_factory=GenerationOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    dtype: ParameterDtype = "float32"
    """Number format of the parameters: int8 is the fastest; float16x2 is as exact as float32 and faster on x86."""
    device: str = "auto"
    """Where to compute: cpu, cuda, cuda:1, mps; auto: a GPU, if there is one and --dtype is not one of the CPU's."""
    json_schema: Path | None = None
    """File with a JSON schema: completions are JSON that is valid under it, whatever the model."""
    regex: str | None = None
    """Regular expression that completions match as a whole, in Rust's syntax."""
    json: bool = False
    """Print a JSON object per completion."""

    def run(self) -> None:
        from ..decode import quantize

        if self.json_schema is not None or self.regex is not None:
            guided = GuidedOptions(**vars(self.generation), grammar=self._grammar())
            return replace(self, generation=guided, json_schema=None, regex=None).run()
        run = load_language_model(self.folder, device_for(self.device, self.dtype))
        model, tokenizer = quantize(run.model, self.dtype), run.processor.tokenizer
        with _plain_warnings():
            if self.prompts or not sys.stdin.isatty():
                self._complete(model, tokenizer, list(self.prompts) or [sys.stdin.read()])
            else:
                self._ask(model, tokenizer)

    def _grammar(self) -> Grammar:
        from ..decode import Grammar
        from ..files import read_json

        if self.json_schema is None:
            assert self.regex is not None
            return Grammar.regex(self.regex)
        if self.regex is not None:
            raise NotSupported("--json-schema and --regex are two grammars; give one of them")
        return Grammar.json_schema(read_json(self.json_schema))

    def _ask(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        """Complete one line after another, until the end of the input."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  line editing and history for input()
        print(f"{self.folder}: type a prompt; Ctrl-C stops a completion, Ctrl-D ends", file=sys.stderr)
        while True:
            try:
                prompt = input("> ")
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                continue
            try:
                self._complete(model, tokenizer, [prompt])
            except KeyboardInterrupt:
                print()

    def _complete(self, model: LanguageModel, tokenizer: Tokenizer, prompts: list[str]) -> None:
        from ..decode import generate, stream

        if len(prompts) == self.generation.num_completions == 1 and not self.json:
            for chunk in stream(model, tokenizer, prompts, self.generation, self.engine):
                print(chunk.text, end="", flush=True)
            print()
            if chunk.finish_reason == "error":
                raise NotSupported(
                    "the grammar wants characters that the tokenizer of this model has no tokens for, so the completion ends early"
                )
            return
        for prompt, completions in zip(prompts, generate(model, tokenizer, prompts, self.generation, self.engine), strict=True):
            for one in completions:
                found = {"prompt": prompt, "text": one.text, "finish": one.finish_reason, "log_prob": round(one.log_prob, 4)}
                print(json_.dumps(found, ensure_ascii=False) if self.json else f"{one.text}\n")


@dataclass(frozen=True, kw_only=True)
class Serve(Command):
    """Serve a model over HTTP with OpenAI's API.

    Routes: completions, chats, embeddings, and the attention weights of its layers; of an encoder, embeddings.

    As in:  regard serve runs/book
            regard serve runs/book --cors https://example.org --access-log
            REGARD_KEY=$(openssl rand -hex 24) regard serve runs/book --host 0.0.0.0 --port 8080
    """

    folder: Positional[Path]
    """Run directory, or a transformers directory."""
    host: str = "127.0.0.1"
    """Address to listen on; one that other machines can reach requires a key."""
    port: int = 8000
    """Port; 0: a free one."""
    key: str | None = None
    """API key that clients send as Authorization: Bearer KEY; better given as REGARD_KEY in the environment, where others cannot read it."""
    name: str | None = None
    """Name of the model; that of the directory if not given."""
    cors: UseAppendAction[tuple[str, ...]] = ()
    """Origin whose web pages may use the server, as in https://example.org; can be repeated. By default none but its own page."""
    access_log: bool = False
    """Print a line per request to standard error: time, client, method, path, status, duration."""
    request_seconds: float = 600.0
    """Maximum duration of a request, in seconds."""
    engine: EngineOptions = field(default_factory=EngineOptions)
    dtype: ParameterDtype = "float32"
    """Number format of the parameters: int8 is the fastest; float16x2 is as exact as float32 and faster on x86."""
    device: str = "auto"
    """Where to compute: cpu, cuda, cuda:1, mps; auto: a GPU, if there is one and --dtype is not one of the CPU's."""

    def run(self) -> None:
        from .. import load_run
        from ..serve import serve

        key = os.environ.get("REGARD_KEY") if self.key is None else self.key
        check_name(self.folder)
        name = self.name or self.folder.resolve().name
        serve(
            lambda: load_run(self.folder, device=device_for(self.device, self.dtype)), name, host=self.host, port=self.port, key=key, dtype=self.dtype, engine_options=self.engine, cors=self.cors,
            access_log=self.access_log, request_seconds=self.request_seconds,
        )  # fmt: skip


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings as a line each, without the place in the code."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"regard: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def device_for(device: str, dtype: ParameterDtype) -> str:
    """The device to load a model to: quantized linear layers are for the CPU, so that is what auto means for them."""
    return "cpu" if device == "auto" and dtype not in ("float32", "bfloat16") else device


def load_language_model(folder: Path, device: str = "cpu") -> Run[LanguageModel]:
    """The run of a model that generates text."""
    from .. import load_run
    from ..models import LanguageModel

    run: Run[Any] = load_run(folder, device=device)
    if not isinstance(run.model, LanguageModel):
        raise NotSupported(f"{folder}: a {run.task} run, which does not generate text; `regard train language` trains one that does")
    print_note(run.unfinished)
    return run
