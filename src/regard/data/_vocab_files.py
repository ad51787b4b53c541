"""Tokenizers of transformers without tokenizer.json: vocab.txt (word pieces), or vocab.json and merges.txt (byte-level BPE).

What these files leave open is in tokenizer_config.json, special_tokens_map.json and added_tokens.json: which class reads them, lower-casing,
accents, Chinese characters, the prefix space, added tokens. A class or an option that is not known here is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import BadFile, NotSupported
from ._tokenizers_library import decoders, models, normalizers, pre_tokenizers, processors, tokenizers
from .tokens import BYTES

WORD_PIECES = ("Bert", "DistilBert", "Electra", "MobileBert", "PreTrained")
GPT_2, ROBERTA = ("GPT2",), ("Roberta", "Bart", "Longformer", "LED")
ROBERTA_TYPES = ("roberta", "bart", "longformer")  # model_type of config.json, where no class is named
REMEDY = 'transformers.AutoTokenizer.from_pretrained("DIR").save_pretrained("DIR") writes tokenizer.json'
DEFAULT_TOKENS = {
    "word pieces": {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"},
    "gpt2": {"unk": "<|endoftext|>", "bos": "<|endoftext|>", "eos": "<|endoftext|>"},
    "roberta": {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"},
}


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as wrong:
        raise BadFile(f"{path}: cannot be read as UTF-8 text: {wrong}") from wrong


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file."""
    if not path.exists():
        return {}
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as wrong:
        raise BadFile(f"{path}: not JSON: {wrong}") from wrong
    if not isinstance(found, dict):
        raise BadFile(f"{path}: expected an object")
    return found


class TokenizerConfig:
    """Contents of the files beside a vocabulary. In files of old, special_tokens_map.json replaces tokenizer_config.json."""

    def __init__(self, folder: Path):
        self.folder, self.values = folder, read_object(folder / "tokenizer_config.json")
        self.legacy = "added_tokens_decoder" not in self.values
        if self.legacy:
            self.values = {**self.values, **read_object(folder / "special_tokens_map.json")}

    def token(self, role: str) -> str | None:
        """The text of the special token that has this role."""
        value = self.values.get(f"{role}_token")
        value = value.get("content") if isinstance(value, dict) else value
        if value is not None and not isinstance(value, str):
            raise BadFile(f"{self.folder}: {role}_token is {str(value)[:60]!r}; expected a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise BadFile(f"{self.folder}: {key} is {str(value)[:60]!r}; expected true or false")
        return value

    def kind(self, *known: str) -> str:
        """The stem of the class that reads the vocabulary; empty if no file names one."""
        name = self.values.get("tokenizer_class") or ""
        stem = str(name).removesuffix("Fast").removesuffix("Tokenizer")
        if stem and stem not in known:
            raise NotSupported(f"{self.folder} has a tokenizer of the class {str(name)[:60]}; {REMEDY}")
        return stem

    def added(self) -> dict[int, tokenizers.AddedToken]:
        """Tokens beside the vocabulary, by id."""
        found: dict[int, tokenizers.AddedToken] = {}
        try:
            if not self.legacy:
                for number, plain in self.values["added_tokens_decoder"].items():
                    found[int(number)] = tokenizers.AddedToken(**plain)
            else:
                special = {self.token(role) for role in ("unk", "bos", "eos", "cls", "sep", "pad", "mask")}
                special |= set(self.values.get("additional_special_tokens") or ()) | set(self.values.get("extra_special_tokens") or ())
                for text, number in read_object(self.folder / "added_tokens.json").items():
                    found[int(number)] = tokenizers.AddedToken(text, normalized=text not in special, special=text in special)
        except (TypeError, ValueError, AttributeError) as wrong:
            raise BadFile(f"{self.folder}: added tokens that cannot be read: {wrong}") from wrong
        return found


def from_vocabulary(folder: Path) -> tuple[tokenizers.Tokenizer, dict[str, str]] | None:
    """The tokenizer of a directory without tokenizer.json, and its special tokens by role; None if it has no vocabulary."""
    config = TokenizerConfig(folder)
    if (folder / "vocab.txt").exists():
        return _word_pieces(folder / "vocab.txt", config)
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return _byte_level(folder, config)
    others = ("spiece.model", "sentencepiece.model", "tokenizer.model", "source.spm", "vocab.json")
    if any((folder / name).exists() for name in others):
        raise NotSupported(f"{folder} has a tokenizer of another library and no tokenizer.json; {REMEDY}")
    return None


def _word_pieces(path: Path, config: TokenizerConfig) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    config.kind(*WORD_PIECES)
    tokens = _special_tokens(config, "word pieces")
    lines = read_text(path).split("\n")
    ids = {line.removesuffix("\r"): number for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    lost = [tokens[role] for role in ("unk", "cls", "sep") if tokens[role] not in ids]
    if lost:
        raise BadFile(f"{path}: a vocabulary of word pieces without {', '.join(lost)}")
    lower, chinese = config.flag("do_lower_case", True), config.flag("tokenize_chinese_chars", True)
    accents = None if config.values.get("strip_accents") is None else config.flag("strip_accents", True)
    native = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=tokens["unk"], max_input_chars_per_word=100))
    native.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=chinese, strip_accents=accents, lowercase=lower)
    native.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    native.post_processor = processors.BertProcessing((tokens["sep"], ids[tokens["sep"]]), (tokens["cls"], ids[tokens["cls"]]))
    native.decoder = decoders.WordPiece()
    _add_tokens(native, ids, tokens, config)
    return native, tokens


def _byte_level(folder: Path, config: TokenizerConfig) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    stem = config.kind(*GPT_2, *ROBERTA)
    model_type = read_object(folder / "config.json").get("model_type")
    roberta = stem in ROBERTA or (not stem and model_type in ROBERTA_TYPES)
    tokens = _special_tokens(config, "roberta" if roberta else "gpt2")
    ids = read_object(folder / "vocab.json")
    lines = read_text(folder / "merges.txt").split("\n")
    merges = [line.split(" ") for line in lines if line.strip() and not line.startswith("#version")]
    if not all(type(number) is int for number in ids.values()):
        raise BadFile(f"{folder / 'vocab.json'}: expected a number per token")
    if set(BYTES) - set(ids) or any(len(pair) != 2 for pair in merges):
        raise NotSupported(f"{folder} has vocab.json and merges.txt, but not over bytes as GPT-2's; {REMEDY}")
    prefix = config.flag("add_prefix_space", False)
    try:
        native = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[(left, right) for left, right in merges]))
    except Exception as wrong:  # the library raises nothing narrower
        raise BadFile(f"{folder}: vocab.json and merges.txt do not fit together: {wrong}") from wrong
    native.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    native.decoder = decoders.ByteLevel()
    if roberta:
        lost = [tokens[role] for role in ("cls", "sep") if tokens[role] not in ids]
        if lost:
            raise BadFile(f"{folder / 'vocab.json'}: no {', '.join(lost)}, which begin and end a text")
        ends = ((tokens["sep"], ids[tokens["sep"]]), (tokens["cls"], ids[tokens["cls"]]))
        native.post_processor = processors.RobertaProcessing(*ends, trim_offsets=True, add_prefix_space=prefix)
    elif config.flag("add_bos_token", False) or config.flag("add_eos_token", False):
        raise NotSupported(f"{folder} puts special tokens around texts (add_bos_token, add_eos_token); {REMEDY}")
    _add_tokens(native, ids, tokens, config)
    return native, tokens


def _special_tokens(config: TokenizerConfig, kind: str) -> dict[str, str]:
    named = {role: config.token(role) for role in ("unk", "bos", "eos", "cls", "sep", "pad", "mask")}
    return DEFAULT_TOKENS[kind] | {role: token for role, token in named.items() if token is not None}


def _add_tokens(native: tokenizers.Tokenizer, ids: Mapping[str, int], tokens: Mapping[str, str], config: TokenizerConfig) -> None:
    """Special tokens of the vocabulary are found whole in texts; tokens beside it continue its numbers."""
    added = config.added()
    for number, token in sorted(added.items()):
        if ids.get(token.content, number) != number or (token.content not in ids and number < len(ids)):
            raise BadFile(f"{config.folder}: the added token {token.content[:60]!r} has the id {number}, which is not its own")
        if native.add_tokens([token]) and native.token_to_id(token.content) != number:
            raise NotSupported(f"{config.folder}: ids of added tokens do not continue those of the vocabulary; {REMEDY}")
    known = {token.content for token in added.values()}
    special = dict.fromkeys(token for token in tokens.values() if token in ids and token not in known)
    strips = tokens.get("mask") if "bos" in tokens and "mask" in tokens else None  # RoBERTa's mask takes the space before it
    native.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False, lstrip=token == strips) for token in special])
