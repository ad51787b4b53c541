"""Settings of transformers' generation: the ids of special tokens in config.json, and generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..data import BOS, EOS, PAD, HFTokenizer, Tokenizer
from ..data._vocab_files import read_object
from ..errors import BadFile
from ..models import LanguageModel, Model, Translator
from ._defaults import DEFAULTS

FILE = "generation_config.json"
IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id")


def read_generation(folder: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json; where there is none, the ids that transformers takes from config.json and its defaults."""
    found = read_object(folder / FILE) or {
        key: value for key, value in {**DEFAULTS[described["model_type"]], **described}.items() if key in IDS and value is not None
    }
    for key in IDS:
        value = found.get(key)
        if value is not None and not all(type(number) is int and number >= 0 for number in (value if isinstance(value, list) else [value])):
            raise BadFile(f"{folder} has {key}={str(value)[:60]!r}; expected a token id, or a list of them")
    if not all(type(token) is int and token >= 0 for token in banned_ids(found)):
        raise BadFile(f"{folder / FILE}: suppress_tokens and bad_words_ids must be token ids")
    return found


def banned_ids(generation: Mapping[str, Any]) -> list[int]:
    """Tokens that are never generated; words of several tokens are not looked for here."""
    words = generation.get("bad_words_ids") or []
    single = [word[0] for word in words if isinstance(word, list) and len(word) == 1] if isinstance(words, list) else [words]
    more = generation.get("suppress_tokens") or []
    return [*(more if isinstance(more, list) else [more]), *single]


def eos_ids(generation: Mapping[str, Any]) -> list[int]:
    eos = generation.get("eos_token_id")
    return eos if isinstance(eos, list) else [] if eos is None else [eos]


def with_generation(tokenizer: HFTokenizer, generation: Mapping[str, Any]) -> HFTokenizer:
    """The tokenizer, which knows where completions begin and end as the model's files say."""
    end = eos_ids(generation)
    named = {
        "start": generation.get("decoder_start_token_id"),
        "bos": generation.get("bos_token_id"),
        "pad": generation.get("pad_token_id"),
    }
    named["eos"] = end[0] if end else None
    roles = {role: token for role, token in named.items() if type(token) is int and token < len(tokenizer)}
    banned = [token for token in banned_ids(generation) if token not in end]
    return tokenizer.with_generation(roles, end, banned)


def generation_of(model: Model, tokenizer: Tokenizer) -> dict[str, Any]:
    """Collect what transformers must know to generate as we do with our own tokenizer."""
    if isinstance(model, Translator):
        ids = {"decoder_start_token_id": BOS, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "forced_eos_token_id": EOS}
        return ids | {"suppress_tokens": [PAD, BOS]}
    if isinstance(model, LanguageModel):
        beyond = range(len(tokenizer), model.config.vocab_size)
        return {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "suppress_tokens": [PAD, BOS, *beyond]}
    return {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
