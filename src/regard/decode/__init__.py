"""Decoding: greedy and beam search, sampling, text generation with continuous batching, quantization, alignments.

| name | what it is |
|---|---|
| `translate`, `iter_translations` | many sources to hypotheses, in batches of similar length |
| `search`, `Beam`, `GREEDY` | beam search with `GNMT` or `Power` length penalty, and coverage; `watch` shows it step by step |
| `sample`, `Sampling` | sampling: temperature, top-k, top-p, min-p, seed |
| `generate`, `stream`, `GenerationOptions`, `few_shot` | prompts to completions, whole or in chunks |
| `generate_ids` | the same on token ids, without a tokenizer: `model.generate` |
| `Engine`, `EngineOptions`, `Request` | continuous batching of many requests |
| `Completion`, `Chunk`, `TokenLogprob` | a completion, what it has grown by, a token's log-probability |
| `PromptEncoder`, `IdEncoder`, `build_engine` | prompts for an engine: texts, or token ids only |
| `quantize` | a model with int8, float16 or bfloat16 parameters, for decoding |
| `Hypothesis` | a decoded sequence: ids, score, log-probabilities, attention weights |
| `write`, `Written` | texts to pen strokes |
| `align` | word alignments from attention weights |
"""

from . import align
from ._base import DecoderModel, DecoderTokens, EncoderDecoder, Hypothesis, RelativeLength
from .beam import GNMT, GREEDY, Beam, Power, Prefix, search, watch
from .engine import Engine, EngineOptions
from .generation import IdEncoder, PromptEncoder, build_engine, few_shot, generate, generate_ids, stream
from .pen import Written, write
from .quantization import quantize
from .requests import Chunk, Completion, Request, TokenLogprob
from .sampling import GenerationOptions, Sampling, sample
from .translation import iter_translations, translate
