"""The tokenizer of a published checkpoint, behind the interface of `Tokenizer`, and the special tokens of any tokenizer.

It is read from tokenizer.json, the file of the `tokenizers` library, else from vocab.txt (BERT's WordPiece) or from vocab.json and
merges.txt (GPT-2's byte-level BPE). Its special tokens have ids of their own, found by role: `tokenizer.roles["mask"]`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from ..errors import BadFile, NotSupported
from .tokens import BOS, BYTE_OF, BYTES, EOS, PAD, SPECIAL, UNK, Tokenizer, _checked, bpe_applied

USUAL = {  # the names that special tokens usually have
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>", "<|endoftext|>"),
    "bos": ("<s>", "<|endoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


class HFTokenizer(Tokenizer):
    """Text to ids and back as the published model does it; text that spells a special token, such as [MASK], becomes that token.

    `roles` are the ids of the special tokens it has: pad, unk, bos, eos, cls, sep, mask.
    """

    def __init__(self, native: tokenizers.Tokenizer, roles: Mapping[str, int]):
        native.no_truncation()
        native.no_padding()
        self.kind, self.merges = "bpe", ()  # subwords
        self.roles = {role: number for role, number in roles.items() if role in USUAL}
        self._native: tokenizers.Tokenizer = native
        self._described = json.loads(native.to_str())
        self._ids = native.get_vocab(with_added_tokens=True)
        named = {number: token for token, number in self._ids.items()}
        self.vocabulary = tuple(named.get(number, "") for number in range(max(named, default=-1) + 1))
        special = {added["id"] for added in self._described["added_tokens"] if added["special"]} | {
            number for role, number in self.roles.items() if role != "unk"
        }
        parts = json.dumps([self._described[part] for part in ("pre_tokenizer", "decoder")])
        self._surface = [b"" if n in special else _surface(token, parts) for n, token in enumerate(self.vocabulary)]

    # -- loading and converting ----------------------------------------------------------------------------------------------------

    @classmethod
    def from_directory(cls, folder: Path) -> HFTokenizer | None:
        """The tokenizer of a transformers checkpoint; None if the directory has none."""
        named = {**_json(folder / "special_tokens_map.json"), **_json(folder / "tokenizer_config.json")}
        if (folder / "tokenizer.json").exists():
            native = _native((folder / "tokenizer.json").read_text(encoding="utf-8"), str(folder / "tokenizer.json"))
        elif (folder / "vocab.txt").exists():
            native = _word_pieces(folder / "vocab.txt", bool(named.get("do_lower_case", True)))
        elif (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
            native = _bytes(folder)
        elif any(
            (folder / name).exists() for name in ("spiece.model", "sentencepiece.model", "tokenizer.model", "source.spm", "vocab.json")
        ):
            raise NotSupported(
                f"{folder} has a tokenizer of another library and no tokenizer.json; "
                'transformers.AutoTokenizer.from_pretrained("DIR").save_pretrained("DIR") writes one'
            )
        else:
            return None
        ids, roles = native.get_vocab(with_added_tokens=True), {}
        for role, usual in USUAL.items():
            given = named.get(f"{role}_token")
            given = given.get("content") if isinstance(given, dict) else given
            token = given if isinstance(given, str) else next((name for name in usual if name in ids), None)
            if token in ids:
                roles[role] = ids[token]
        return cls(native, roles)

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, framed: bool = False) -> HFTokenizer | None:
        """A byte-pair tokenizer of ours in the library's form; None for other kinds. `framed`: it puts BOS and EOS around texts."""
        if isinstance(tokenizer, HFTokenizer):
            return tokenizer
        if tokenizer.kind != "bpe":
            return None
        native = bpe_applied({token: n for n, token in enumerate(tokenizer.vocabulary)}, tokenizer.merges)
        native.decoder = decoders.ByteLevel()
        native.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
        if framed:
            bos, eos = SPECIAL[BOS], SPECIAL[EOS]
            native.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A {eos}", pair=f"{bos} $A {eos} $B:1 {eos}:1", special_tokens=[(bos, BOS), (eos, EOS)]
            )
        return cls(native, {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK})

    def save_pretrained(self, folder: Path, kinds: bool = False) -> None:
        """Write tokenizer.json and tokenizer_config.json for transformers; `kinds`: the model takes token type ids."""
        (folder / "tokenizer.json").write_text(self._native.to_str(pretty=True), encoding="utf-8")
        named = {f"{role}_token": self.vocabulary[number] for role, number in self.roles.items()}
        inputs = ["input_ids", "token_type_ids", "attention_mask"] if kinds else ["input_ids", "attention_mask"]
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs, **named}
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    # -- text and ids --------------------------------------------------------------------------------------------------

    def encode_all(self, texts: Sequence[str], dropout: float = 0.0, seed: int = 0) -> list[list[int]]:
        if dropout:
            raise NotSupported("BPE-dropout with the tokenizer of a published checkpoint; train one that can with Tokenizer.train")
        checked = [_checked(text) for text in texts]
        return [found.ids for found in self._native.encode_batch_fast(checked, add_special_tokens=False)]

    def encode_pair(self, text: str, other: str | None = None) -> tuple[list[int], list[int]]:
        """Ids of one or two texts with the special tokens the model expects, and their token type ids."""
        found = self._native.encode(_checked(text), None if other is None else _checked(other))
        return found.ids, found.type_ids

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """By character offsets: WordPiece makes three tokens of "don't", which decode with spaces between them."""
        text = " ".join(words)
        found = self._native.encode(_checked(text), add_special_tokens=False)
        starts = list(accumulate((len(word) + 1 for word in words), initial=0))
        return found.ids, [
            -1 if end <= begin or text[end - 1].isspace() else bisect_right(starts, end - 1) - 1 for begin, end in found.offsets
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text; special tokens vanish."""
        return self._native.decode([int(i) for i in ids], skip_special_tokens=True)

    def strings(self, ids: Iterable[int]) -> list[str]:
        return [self._surface[i].decode("utf-8", "backslashreplace").strip() or self.vocabulary[i] for i in map(int, ids)]

    # -- on disk -------------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HFTokenizer) and (self._described, self.roles) == (other._described, other.roles)

    def __hash__(self) -> int:
        return hash(self.vocabulary)

    def __repr__(self) -> str:
        return f"HFTokenizer({len(self)} tokens)"

    def to_json(self) -> dict[str, Any]:
        return {"kind": "hf", "roles": self.roles, "native": self._described}

    @classmethod
    def from_json(cls, described: Any, where: str = "tokenizer") -> HFTokenizer:
        roles, native = described.get("roles"), described.get("native")
        if not isinstance(native, dict) or not isinstance(roles, dict) or not all(type(n) is int for n in roles.values()):
            raise BadFile(f"{where}: expected roles (ids by name) and the file of the tokenizers library")
        return cls(_native(json.dumps(native), where), roles)


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens around a text and in place of masked words, for any tokenizer.

        begin text end            begin text end text end            a masked word becomes `mask`

    In ours these are BOS, EOS and the id after the last, for a model with one more token; an `HFTokenizer` has its own, by role.
    """

    begin: int
    end: int
    hidden: int | None  # the mask token
    unknown: int | None
    special: frozenset[int]  # ids of special tokens
    size: int  # of the vocabulary

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> SpecialTokens:
        if not isinstance(tokenizer, HFTokenizer):
            return cls(BOS, EOS, len(tokenizer), UNK, frozenset(range(len(SPECIAL))), len(tokenizer))
        roles = tokenizer.roles
        begin, end = roles.get("cls", roles.get("bos", roles.get("eos"))), roles.get("sep", roles.get("eos", roles.get("bos")))
        if begin is None or end is None:
            raise NotSupported(f"{tokenizer!r} has no token that begins or ends a text; its roles are {', '.join(roles) or 'none'}")
        return cls(begin, end, roles.get("mask"), roles.get("unk"), frozenset(roles.values()), len(tokenizer))

    @property
    def mask(self) -> int:
        """The id of the mask token."""
        if self.hidden is None:
            raise NotSupported("this vocabulary has no mask token; take a tokenizer made for masked language modelling")
        return self.hidden

    def words(self) -> Tensor:
        """All ids but those of special tokens."""
        return torch.tensor([i for i in range(self.size) if i not in self.special])


def _native(text: str, where: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as wrong:  # the library raises nothing narrower
        raise BadFile(f"{where}: not a file of the tokenizers library: {wrong}") from wrong


def _word_pieces(path: Path, lowercase: bool) -> tokenizers.Tokenizer:
    ids = {line.rstrip("\n"): number for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True))}
    lost = [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in ids]
    if lost:
        raise BadFile(f"{path}: a vocabulary of word pieces without {', '.join(lost)}")
    native = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    native.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    native.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    native.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    native.decoder = decoders.WordPiece()
    special = [token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if token in ids]
    native.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return native


def _bytes(folder: Path) -> tokenizers.Tokenizer:
    ids = _json(folder / "vocab.json")
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    if set(BYTES) - set(ids) or any(len(pair) != 2 for pair in merges):
        raise NotSupported(
            f"{folder} has vocab.json and merges.txt, but not over bytes as GPT-2's; "
            'transformers.AutoTokenizer.from_pretrained("DIR").save_pretrained("DIR") writes tokenizer.json'
        )
    native = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[(left, right) for left, right in merges]))
    native.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    native.decoder = decoders.ByteLevel()
    if "<|endoftext|>" in ids:
        native.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return native


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as wrong:
        raise BadFile(f"{path}: not JSON: {wrong}") from wrong
    if not isinstance(found, dict):
        raise BadFile(f"{path}: expected an object")
    return found


def _surface(token: str, parts: str) -> bytes:
    """What a token adds to a text, with the space before it."""
    if "ByteLevel" in parts:
        return bytes(BYTE_OF[c] for c in token) if all(c in BYTE_OF for c in token) else token.encode()
    if "WordPiece" in parts:
        return token[2:].encode() if token.startswith("##") else f" {token}".encode()
    if token.endswith("</w>"):
        return f"{token[:-4]} ".encode()
    return token.replace("▁", " ").encode()
