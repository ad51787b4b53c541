"""Decoding: greedy and beam search, sampling, text generation with continuous batching, quantization, alignments.

| name | what it is |
|---|---|
| `translate`, `iter_translations` | many sources to hypotheses, in batches of similar length |
| `search`, `Beam`, `GREEDY` | beam search with `GNMT` or `Power` length penalty, and coverage; `watch` shows it step by step |
| `sample`, `Sampling` | sampling: temperature, top-k, top-p, min-p, seed |
| `generate`, `stream`, `GenerationOptions`, `few_shot` | prompts to completions, whole or in chunks |
| `generate_ids` | the same on token ids, without a tokenizer: `model.generate` |
| `Engine`, `EngineOptions`, `Request` | continuous batching of many requests |
| `Grammar`, `GuidedOptions` | the grammar that completions follow: a JSON schema, a regular expression, one of several texts |
| `Completion`, `Chunk`, `TokenLogprob` | a completion, what it has grown by, a token's log-probability |
| `PromptEncoder`, `IdEncoder`, `build_engine` | prompts for an engine: texts, or token ids only |
| `quantize` | a model with int8, float16 or bfloat16 parameters, for decoding |
| `Hypothesis` | a decoded sequence: ids, score, log-probabilities, attention weights |
| `write`, `Written` | texts to pen strokes |
| `align` | word alignments from attention weights |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from . import align
    from ._base import DecoderModel as DecoderModel
    from ._base import DecoderTokens as DecoderTokens
    from ._base import EncoderDecoder as EncoderDecoder
    from ._base import Hypothesis as Hypothesis
    from .beam import GNMT as GNMT
    from .beam import GREEDY as GREEDY
    from .beam import Beam as Beam
    from .beam import Power as Power
    from .beam import Prefix as Prefix
    from .beam import search as search
    from .beam import watch as watch
    from .engine import Engine as Engine
    from .generation import IdEncoder as IdEncoder
    from .generation import PromptEncoder as PromptEncoder
    from .generation import build_engine as build_engine
    from .generation import few_shot as few_shot
    from .generation import generate as generate
    from .generation import generate_ids as generate_ids
    from .generation import stream as stream
    from .guided import Grammar as Grammar
    from .options import EngineOptions as EngineOptions
    from .options import GenerationOptions as GenerationOptions
    from .options import GuidedOptions as GuidedOptions
    from .options import RelativeLength as RelativeLength
    from .options import Sampling as Sampling
    from .pen import Written as Written
    from .pen import write as write
    from .quantization import quantize as quantize
    from .requests import Chunk as Chunk
    from .requests import Completion as Completion
    from .requests import Request as Request
    from .requests import TokenLogprob as TokenLogprob
    from .sampling import sample as sample
    from .translation import iter_translations as iter_translations
    from .translation import translate as translate
else:
    __getattr__, __dir__ = lazy(__name__)
