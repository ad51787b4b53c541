"""The tokenizer of a published checkpoint, behind the interface of `Tokenizer`.

It is read from tokenizer.json, the file of the `tokenizers` library, else from a vocabulary (`_vocab_files`). Its special tokens have ids of
their own, found by role: `tokenizer.mask_id`. Our own tokenizers are converted to the library's form for transformers.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from ..errors import BadFile, NotSupported
from ..files import parse_json
from ._tokenizers_library import decoders, models, normalizers, pre_tokenizers, processors, tokenizers
from ._vocab_files import TokenizerConfig, from_vocabulary, read_text
from .tokens import BOS, BYTE_OF, EOS, MASK, PAD, SPECIAL, UNK, Tokenizer, _checked, bpe_applied

MAX_VOCABULARY = 2**22  # the largest published ones have 2**18 tokens
LAST_END = "⟨end⟩"
Frame = Literal["none", "bos", "eos", "both"]
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

    One made of our own tokenizer splits such text as that does.

    Args:
        native: tokenizer of the library.
        roles: ids of the special tokens it has: pad, unk, bos, eos, cls, sep, mask, and start, which begins what a translator writes.
        eos_ids: tokens that end what a model writes; that of the role eos if none are given.
        banned_ids: tokens that are never generated; None if the files do not say.
        chat_template: template that turns messages into a prompt, in Jinja.
        plain_ids: roles that no file calls special, known by their usual names only: text may hold them.
    """

    def __init__(
        self,
        native: tokenizers.Tokenizer,
        roles: Mapping[str, int],
        eos_ids: Sequence[int] = (),
        banned_ids: Sequence[int] | None = None,
        chat_template: str | None = None,
        plain_ids: Sequence[int] = (),
    ):
        native.no_truncation()
        native.no_padding()
        self._library, self._described = native, json.loads(native.to_str())
        roles = {role: number for role, number in roles.items() if role in (*USUAL, "start")}
        named = {number: token for token, number in native.get_vocab(with_added_tokens=True).items()}
        if max(named, default=0) > MAX_VOCABULARY or max(roles.values(), default=0) > MAX_VOCABULARY:
            raise BadFile(f"a tokenizer with the token id {max(*named, *roles.values())}; expected at most {MAX_VOCABULARY}")
        self._special = {added["id"] for added in self._described["added_tokens"] if added["special"]}
        self._plain = tuple(number for number in plain_ids if number not in self._special)
        self._special |= {number for role, number in roles.items() if role != "unk" and number not in self._plain}
        super().__init__(type(native.model).__name__.lower(), [named.get(number, "") for number in range(max(named, default=-1) + 1)])
        self._assign(roles, eos_ids or ([roles["eos"]] if "eos" in roles else ()))
        self.chat_template, self._banned = chat_template, None if banned_ids is None else tuple(banned_ids)
        # the names of special tokens are plain text for our tokenizers
        native.encode_special_tokens = self._spelt_out = self.vocabulary[: len(SPECIAL)] == SPECIAL and "mask" not in roles

    def _surfaces(self) -> list[bytes]:
        parts = json.dumps([self._described[part] for part in ("pre_tokenizer", "decoder")])
        return [b"" if n in self._special else _surface(token, parts) for n, token in enumerate(self.vocabulary)]

    def token_bytes(self) -> list[bytes] | None:
        words = self.kind in ("wordpiece", "wordlevel") or any(token.endswith("</w>") for token in self.vocabulary)
        return None if words else super().token_bytes()

    def _make_native(self) -> tokenizers.Tokenizer:
        return self._library

    @property
    def banned_ids(self) -> tuple[int, ...]:
        return super().banned_ids if self._banned is None else self._banned

    @property
    def mask_id(self) -> int:
        if "mask" not in self.roles:
            raise NotSupported("this vocabulary has no mask token; use a tokenizer made for masked language modelling")
        return self.roles["mask"]

    @property
    def mask_token(self) -> str:  # type: ignore[override]
        return self.vocabulary[self.mask_id]

    @property
    def prompt_prefix(self) -> list[int]:
        first = self.encode_pair("")[0][:1]
        return first if first == [self.bos_id] else []

    # -- loading and converting ----------------------------------------------------------------------------------------------------

    @classmethod
    def from_directory(cls, folder: Path) -> HFTokenizer | None:
        """The tokenizer of a transformers checkpoint; None if the directory has none."""
        if (folder / "tokenizer.json").exists():
            native = _native(read_text(folder / "tokenizer.json"), str(folder / "tokenizer.json"))
            config, ids = TokenizerConfig(folder), native.get_vocab(with_added_tokens=True)
            tokens, plain = {}, set[str]()
            for role, usual in USUAL.items():
                token = config.token(role)
                tokens[role] = next((name for name in usual if name in ids), "") if token is None else token
                if token is None:
                    plain.add(role)
        else:
            found = from_vocabulary(folder)
            if found is None:
                return None
            (native, tokens), plain = found, set()
            ids = native.get_vocab(with_added_tokens=True)
        roles = {role: ids[token] for role, token in tokens.items() if token in ids}
        named = {number for role, number in roles.items() if role not in plain}
        return cls(native, roles, chat_template=_chat_template(folder), plain_ids=sorted({*roles.values()} - named))

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, frame: Frame = "none", mask: bool = False, end_last: bool = False) -> HFTokenizer:
        """One of our own tokenizers in the library's form.

        `frame`: which special tokens it puts around texts: BOS and EOS ("both"), one of them, or none. `mask`: the model has a mask token.
        `end_last`: the token that ends a text is not EOS but one with the largest id, as CLIP's.

        Args:
            tokenizer: tokenizer to convert; one of a published model is returned as it is.
            frame: special tokens it puts around texts: BOS and EOS (both), one of them, or none.
            mask: the model has a mask token.
            end_last: end texts with a token of the largest id instead of EOS, as CLIP does.
        """
        if isinstance(tokenizer, HFTokenizer) and (tokenizer.vocabulary[: len(SPECIAL)] != SPECIAL or tokenizer.roles.get("eos") != EOS):
            return tokenizer  # it says itself what it puts around texts
        native = _converted(tokenizer)
        bos, eos = SPECIAL[BOS], LAST_END if end_last else SPECIAL[EOS]
        special = [*SPECIAL, *(["[MASK]"] if mask else []), *([eos] if end_last else [])]
        native.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in special])
        end = len(tokenizer) + mask if end_last else EOS  # specials beyond the vocabulary are numbered in order
        first, last = f"{bos} " * (frame in ("both", "bos")), f" {eos}" * (frame in ("both", "eos"))
        if first or last:
            last_b = f" {eos}:1" if last else ""
            native.post_processor = processors.TemplateProcessing(
                single=f"{first}$A{last}", pair=f"{first}$A{last} $B:1{last_b}", special_tokens=[(bos, BOS), (eos, end)]
            )
        roles = {"pad": PAD, "bos": BOS, "eos": end, "unk": UNK} | ({"mask": len(tokenizer)} if mask else {})
        return cls(native, roles)

    def save_pretrained(self, folder: Path, kinds: bool = False) -> None:
        """Write tokenizer.json and tokenizer_config.json for transformers; `kinds`: the model takes token type ids."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(self._library.to_str(pretty=True), encoding="utf-8")
        named = {f"{role}_token": self.vocabulary[number] for role, number in self.roles.items() if role in USUAL}
        inputs = ["input_ids", "token_type_ids", "attention_mask"] if kinds else ["input_ids", "attention_mask"]
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs, "clean_up_tokenization_spaces": False, **named}
        if self._spelt_out:
            config["split_special_tokens"] = True
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def with_generation(self, roles: Mapping[str, int], eos: Sequence[int], banned: Sequence[int]) -> HFTokenizer:
        """Return this tokenizer for a model that ends its output with any of `eos` and never writes `banned` tokens; its own `roles` go first.

        Args:
            roles: ids of special tokens, for the roles it lacks.
            eos: tokens that end what the model writes.
            banned: tokens that are never generated.
        """
        inside = [token for token in eos if token < len(self)]
        return HFTokenizer(self._library, {**roles, **self.roles}, inside or self.eos_ids, banned, self.chat_template, self._plain)

    # -- text and ids --------------------------------------------------------------------------------------------------

    def encode_all(self, texts: Sequence[str], dropout: float = 0.0, seed: int = 0) -> list[list[int]]:
        if dropout:
            raise NotSupported("BPE-dropout with the tokenizer of a published checkpoint; train one that can with Tokenizer.train")
        checked = [_checked(text) for text in texts]
        try:
            return [found.ids for found in self._library.encode_batch_fast(checked, add_special_tokens=False)]
        except Exception as wrong:  # the library raises nothing narrower
            raise NotSupported(f"the tokenizer of this checkpoint cannot encode the text: {wrong}") from wrong

    def encode_pair(self, text: str, other: str | None = None) -> tuple[list[int], list[int]]:
        """Ids of one or two texts with the special tokens the model expects, and their token type ids."""
        found = self._library.encode(_checked(text), None if other is None else _checked(other))
        return found.ids, found.type_ids

    def encode_masked(self, text: str, framed: bool = False) -> list[int]:
        """The library finds the mask in a text itself, with the spaces around it."""
        text = text.replace(MASK, self.mask_token) if MASK in text else text
        return self.encode_pair(text)[0] if framed else self.encode(text)

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """By character offsets: WordPiece makes three tokens of "don't", which decode with spaces between them."""
        text = " ".join(words)
        found = self._library.encode(_checked(text), add_special_tokens=False)
        starts = list(accumulate((len(word) + 1 for word in words), initial=0))
        return found.ids, [
            -1 if end <= begin or text[end - 1].isspace() else bisect_right(starts, end - 1) - 1 for begin, end in found.offsets
        ]

    def _with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        found = self._library.encode(text, add_special_tokens=False)
        return found.ids, found.offsets

    def decode(self, ids: Iterable[int], words: Sequence[str] = ()) -> str:
        """The text; special tokens vanish."""
        return self._library.decode([i for i in map(int, ids) if i not in self._special], skip_special_tokens=True)

    def strings(self, ids: Iterable[int], words: Sequence[str] = ()) -> list[str]:
        return [self._surface[i].decode("utf-8", "backslashreplace").strip() or self.vocabulary[i] for i in map(int, ids)]

    # -- on disk -------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        more = {"banned": None if self._banned is None else list(self._banned), "chat_template": self.chat_template}
        more |= {"plain": list(self._plain) or None}
        more = {name: value for name, value in more.items() if value is not None}
        return {"kind": "hf", "roles": dict(self.roles), "eos": list(self.eos_ids), **more, "native": self._described}

    @classmethod
    def from_json(cls, described: Any, where: str = "tokenizer") -> HFTokenizer:
        roles, native = described.get("roles"), described.get("native")
        eos, banned, plain = described.get("eos", []), described.get("banned"), described.get("plain", [])
        ids = [*roles.values()] if isinstance(roles, dict) else [None]
        for each in (eos, banned or [], plain):
            ids += each if isinstance(each, list) else [None]
        if not isinstance(native, dict) or not all(type(n) is int and n >= 0 for n in ids):
            raise BadFile(f"{where}: expected roles (ids by name), lists of ids, and the file of the tokenizers library")
        chat_template = described.get("chat_template")
        if not isinstance(chat_template, str | None):
            raise BadFile(f"{where}: expected chat_template to be a text")
        return cls(_native(json.dumps(native), where), roles, eos, banned, chat_template, plain)


def _native(text: str, where: str) -> tokenizers.Tokenizer:
    _check_ids(text, where)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as wrong:  # the library raises nothing narrower, and some of its errors are not Exceptions
        raise BadFile(f"{where}: not a file of the tokenizers library: {wrong}") from wrong


def _check_ids(text: str, where: str) -> None:
    """Refuse ids far beyond the number of tokens: the library counts up to the last of them, one by one, and so do we."""
    described = parse_json(text.encode(errors="surrogatepass"), where)
    model, added = (described.get(part) for part in ("model", "added_tokens")) if isinstance(described, dict) else (None, None)
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else [*range(len(vocabulary))] if isinstance(vocabulary, list) else []
    ids += [one.get("id") for one in added if isinstance(one, dict)] if isinstance(added, list) else []
    last = max((number for number in ids if isinstance(number, int | float)), default=0)
    if last > 2 * len(ids) + 10_000:
        raise BadFile(f"{where}: the id {last:,} among {len(ids):,} tokens; expected ids with few gaps")


def _converted(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The library's tokenizer that splits texts as ours does."""
    if isinstance(tokenizer, HFTokenizer):  # our own unigram vocabulary
        return tokenizers.Tokenizer.from_str(tokenizer._library.to_str())
    native = _converted_kind(tokenizer)
    if tokenizer.lowercase:
        lower = normalizers.Lowercase()
        native.normalizer = lower if native.normalizer is None else normalizers.Sequence([lower, native.normalizer])
    return native


def _converted_kind(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    ids = {token: n for n, token in enumerate(tokenizer.vocabulary)}
    if tokenizer.kind in ("bpe", "byte"):
        native = bpe_applied(ids, tokenizer.merges)
        native.decoder = decoders.ByteLevel()
        if tokenizer.kind == "byte":  # which the library would not take for bytes: it has no merges that could cross words
            native.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return native
    native = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=SPECIAL[UNK]))
    if tokenizer.kind == "char":
        native.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"(?m:.)|\n"), behavior="isolated")
        native.decoder = decoders.Fuse()
        return native
    # a mark keeps the spaces around it, and the ends of a text count as spaces; two marks share one, so it is written twice
    spaces = [
        normalizers.Replace(tokenizers.Regex(r"\s+"), "  "),
        normalizers.Prepend(" "),
        normalizers.Replace(tokenizers.Regex(r"\z"), " "),
    ]
    native.normalizer = normalizers.Sequence(spaces)
    lone = r"(?<!\w)(?![\p{L}\p{Nd}_])\w(?!\w)"  # a number like ½ or an accent by itself is a mark, too
    native.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(rf" ?{lone} ?|\w+| ?(?!\w)\S ?"), behavior="removed", invert=True)
    return native


def _chat_template(folder: Path) -> str | None:
    """chat_template.jinja, or the entry of tokenizer_config.json: a text, or several by name, of which the default is taken."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return read_text(path)
    template = TokenizerConfig(folder).values.get("chat_template")
    if isinstance(template, list):
        template = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}.get("default")
    return template if isinstance(template, str) else None


def _surface(token: str, parts: str) -> bytes:
    """Bytes that a token adds to a text, with the space before it."""
    if "ByteFallback" in parts and len(token) == 6 and token.startswith("<0x"):
        return bytes.fromhex(token[3:5])
    if "ByteLevel" in parts:
        return bytes(BYTE_OF[c] for c in token) if all(c in BYTE_OF for c in token) else token.encode()
    if "WordPiece" in parts:
        return token[2:].encode() if token.startswith("##") else f" {token}".encode()
    if token.endswith("</w>"):
        return f"{token[:-4]} ".encode()
    return token.replace("▁", " ").encode()
