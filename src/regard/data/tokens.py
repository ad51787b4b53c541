"""Tokenizers: text to ids and back, by subwords, words, characters or bytes.

    kind         a token is                                         unknown            decode(encode(text)) == text
    bpe          a piece of a word, made of bytes (default)         never              always
    unigram      a likely piece of a word, or a byte (`unigram`)    never              but for ▁
    byte         one byte of the text in UTF-8                      never              always
    char         one character                                      if rare, unseen    if no character was unknown
    word         a word or a punctuation mark                       if rare, unseen    up to white space, if no word was unknown

The first four ids are the same in every vocabulary: PAD, BOS, EOS, UNK. No text is encoded as one of the first three: no kind
can produce their names. With `lowercase`, text is lower-cased before it is split. Masks come from lengths, never from `id == PAD`.

Byte-pair encoding starts from bytes and repeatedly merges the most frequent pair of neighbours. The `tokenizers` library trains and
applies it; dropout is written here, because the library's own cannot be seeded.

Paper: Sennrich et al. 2016, "Neural machine translation of rare words with subword units", arXiv:1508.07909; over bytes,
Radford et al. 2019; dropout, Provilkov et al. 2020, "BPE-dropout", arXiv:1910.13267.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import BadFile, BadText, MissingFile, NotSupported, UnknownName
from ..files import read_json, write_json
from ._tokenizers_library import models, normalizers, pre_tokenizers, tokenizers, trainers

Merge = tuple[str, str]
Kind = Literal["bpe", "word", "char", "byte"]
TrainedKind = Literal["bpe", "unigram", "word", "char", "byte"]
PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL = ("⟨pad⟩", "⟨bos⟩", "⟨eos⟩", "⟨unk⟩")
ROLES = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK}
MASK = "[MASK]"  # in a text: a token to predict
VERSION = 1
LIMIT = 64 << 20  # bytes of tokenizer.json; Gemma's vocabulary of 256,000 takes 33 million
_GLUE = b"\xff"  # never in UTF-8: no space here, whatever the neighbouring token says


@cache
def _lower() -> normalizers.Normalizer:
    return normalizers.Lowercase()


@cache
def _words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(tokenizers.Regex(r"\w+|[^\w\s]"), behavior="removed", invert=True)


class Tokenizer:
    """Vocabulary, the rule that splits text into its tokens, and its special tokens. Made by `train` or `Tokenizers.load`.

    | attribute | token |
    |---|---|
    | `pad_id`, `bos_id`, `eos_id`, `unk_id` | padding, begin, end, unknown; None if there is none |
    | `begin_id`, `end_id` | around a text that an encoder reads: [CLS] and [SEP] where there are such |
    | `target_start_id`, `target_end_id` | around what a decoder writes about a source |
    | `mask_id`, `mask_token` | shown instead of a token to predict; of our own vocabularies the id after the last |
    | `eos_ids`, `banned_ids` | tokens that end a completion, tokens that are never generated |
    | `special_ids` | all special tokens |
    | `prompt_prefix` | tokens before every prompt |
    | `chat_template` | Jinja template of chat messages; None if there is none |

    Args:
        kind: kind of tokens.
        vocabulary: token strings, in the order of their ids.
        merges: pairs that bpe merges, in this order.
        lowercase: lower-case texts first.
    """

    chat_template: str | None = None
    mask_token = MASK

    def __init__(self, kind: str, vocabulary: Sequence[str], merges: Sequence[Merge] = (), lowercase: bool = False):
        self.kind, self.lowercase = kind, lowercase
        self.vocabulary, self.merges = tuple(vocabulary), tuple(merges)
        self._assign(ROLES, (EOS,))
        self._ids = {token: number for number, token in enumerate(self.vocabulary)}
        self._surface = self._surfaces()
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._native = self._make_native()

    def _surfaces(self) -> list[bytes]:
        """Bytes that each token adds to a text."""
        return [b"", b"", b"", self._bytes_of(SPECIAL[UNK]), *map(self._bytes_of, self.vocabulary[len(SPECIAL) :])]

    def _make_native(self) -> tokenizers.Tokenizer | None:
        """Tokenizer of the library, for the kinds that it applies."""
        return bpe_applied(self._ids, self.merges) if self.kind == "bpe" else None

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tokenizer):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.kind, self.vocabulary, self.merges))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind}, {len(self)} tokens)"

    def __deepcopy__(self, memo: Any) -> Tokenizer:
        return self  # it never changes; a model that carries one is copied without it

    # -- special tokens ------------------------------------------------------------------------------------------------

    def _assign(self, roles: Mapping[str, int], eos_ids: Sequence[int]) -> None:
        """Take these ids for pad, bos, eos, unk, cls, sep, mask and start."""
        self.roles, self.eos_ids, self.special_ids = roles, tuple(eos_ids), frozenset(roles.values())
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = (roles.get(role) for role in ("pad", "bos", "eos", "unk"))

    @property
    def begin_id(self) -> int:
        return self._first_of("cls", "bos", "eos")

    @property
    def end_id(self) -> int:
        return self._first_of("sep", "eos", "bos")

    @property
    def target_start_id(self) -> int:
        return self._first_of("start", "bos", "cls", "pad")  # Marian's begin with padding

    @property
    def target_end_id(self) -> int:
        return self.eos_ids[0] if self.eos_ids else self._first_of("sep")

    @property
    def mask_id(self) -> int:
        return len(self)

    @property
    def banned_ids(self) -> tuple[int, ...]:
        no_text = {self.roles[role] for role in ("pad", "bos", "cls", "mask") if role in self.roles}
        return tuple(sorted(no_text - {*self.eos_ids, self.roles.get("sep")}))

    @property
    def prompt_prefix(self) -> list[int]:
        return [BOS]  # as documents begin in training

    def _first_of(self, *roles: str) -> int:
        for role in roles:
            if role in self.roles:
                return self.roles[role]
        raise NotSupported(f"{self!r} has no token that begins or ends a text; its roles are {', '.join(self.roles) or 'none'}")

    # -- training ----------------------------------------------------------------------------------------------------

    @classmethod
    def train(
        cls, lines: Iterable[str], kind: TrainedKind = "bpe", vocab_size: int = 8000, min_count: int = 2, lowercase: bool = False
    ) -> Tokenizer:
        """A vocabulary of at most `vocab_size` tokens, each seen at least `min_count` times. The same lines give the same one.

        Args:
            lines: texts to learn from.
            kind: kind of tokens.
            vocab_size: maximum number of tokens, special ones included.
            min_count: occurrences that a token needs.
            lowercase: lower-case texts first.
        """
        if kind not in get_args(TrainedKind):
            raise UnknownName("kind of tokenizer", str(kind), get_args(TrainedKind))
        if kind == "unigram":
            from .unigram import train_unigram  # it makes a subclass, so it imports this

            return train_unigram(map(_checked, lines), vocab_size, lowercase)
        if lowercase:
            lines = (_lower().normalize_str(_checked(line)) for line in lines)
        smallest = len(SPECIAL) + (256 if kind in ("bpe", "byte") else 1)
        if vocab_size < smallest:
            raise NotSupported(f"vocab_size={vocab_size}: {kind} needs at least {smallest} (4 of them PAD, BOS, EOS, UNK); raise it")
        if kind == "byte":
            return cls(kind, (*SPECIAL, *BYTES), (), lowercase)
        if kind == "bpe":
            vocabulary, merges = _bpe_trained(map(_checked, lines), vocab_size - len(SPECIAL), min_count)
            return cls(kind, (*SPECIAL, *vocabulary), merges, lowercase)
        cut = cls(kind, SPECIAL)
        counts = Counter(piece for line in lines for piece in cut._pieces(_checked(line)))
        kept = sorted((piece for piece, n in counts.items() if n >= min_count), key=lambda piece: (-counts[piece], piece))
        return cls(kind, (*SPECIAL, *kept[: vocab_size - len(SPECIAL)]), (), lowercase)

    # -- text to ids ---------------------------------------------------------------------------------------------------

    def encode(self, text: str, dropout: float = 0.0, seed: int = 0) -> list[int]:
        """Ids of the text, without BOS and EOS. With dropout (bpe only) each merge is skipped with that probability at each step.

        Args:
            text: text to encode.
            dropout: probability that a merge is skipped.
            seed: seed of the dropout.
        """
        return self.encode_all([text], dropout, seed)[0]

    def encode_all(self, texts: Sequence[str], dropout: float = 0.0, seed: int = 0) -> list[list[int]]:
        """`encode` of many texts at once; with dropout, text number n uses a generator seeded with (seed, n).

        Args:
            texts: texts to encode.
            dropout: probability that a merge is skipped.
            seed: seed of the dropout.
        """
        texts = [_lower().normalize_str(_checked(text)) if self.lowercase else _checked(text) for text in texts]
        if dropout:
            if self._native is None or not 0 < dropout <= 1:
                raise NotSupported(f"dropout {dropout} of a {self.kind} tokenizer; BPE-dropout is a probability from 0 to 1, for kind bpe")
            cut = (bpe_with_dropout(text, self._ranks, dropout, random.Random((seed << 32) + n)) for n, text in enumerate(texts))
            return [[self._ids[token] for token in tokens] for tokens in cut]
        if self._native is not None:
            return [encoding.ids for encoding in self._native.encode_batch_fast(texts, add_special_tokens=False)]
        return [[self._ids.get(piece, UNK) for piece in self._pieces(text)] for text in texts]

    def encode_masked(self, text: str, framed: bool = False) -> list[int]:
        """Ids of a text in which [MASK] is the mask token; `framed`: with the special tokens around it."""
        *before, last = text.split(MASK)
        if self.kind == "bpe":  # the space before a word is part of its token, and that is what is masked
            before = [part.removesuffix(" ") for part in before]
        ids = [i for part in self.encode_all([*before, last]) for i in (*part, self.mask_id)][:-1]
        return [self.begin_id, *ids, self.end_id] if framed else ids

    def encode_open(self, text: str, words: Sequence[str] | None = None, longest: int | None = None) -> tuple[list[int], list[str]]:
        """Ids of the first `longest` tokens, and the words that ids outside the vocabulary stand for, for models that copy.

        Word number n of the text that the vocabulary lacks gets the id len(self) + n. With `words`, those of a source, only they get one, and
        any other is UNK. Subwords and bytes lack no word.

        Args:
            text: text to encode.
            words: words of the source that get ids; None: all words of this text.
            longest: maximum number of tokens.
        """
        if self.kind not in ("word", "char"):
            return self.encode(text)[:longest], list(words or ())
        known = {word: len(self) + n for n, word in enumerate(words or ())}
        ids = []
        for piece in self._pieces(_lower().normalize_str(_checked(text)) if self.lowercase else _checked(text))[:longest]:
            if (number := self._ids.get(piece)) is None:
                number = known.setdefault(piece, len(self) + len(known)) if words is None else known.get(piece, UNK)
            ids.append(number)
        return ids, list(known)

    def _pieces(self, text: str) -> list[str]:
        if self.kind == "char":
            return list(text)
        if self.kind == "byte":
            return [BYTES[byte] for byte in text.encode()]
        cut = _words().pre_tokenize_str(text)
        ends = [-1, *(end for _, (_, end) in cut)]
        starts = [*(start for _, (start, _) in cut), -1]
        # a mark keeps the spaces around it, ", " or " (": so a word is the same token beside a mark and without one
        return [
            " " * (ends[n] != start) + token + " " * (starts[n + 1] != end) if _is_mark(token) else token
            for n, (token, (start, end)) in enumerate(cut)
        ]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of the text, and for each the characters (first, end) of `text` that it stands for, without white space around them.

        A token of a part of a character has the whole of it; one of white space alone has first == end.
        """
        ids, spans = self._with_offsets(_checked(text))
        return ids, [_stripped(text, first, end) for first, end in spans]

    def _with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        whose = list(range(len(text)))  # the character of `text` that each character after lower-casing comes from
        if self.lowercase:  # which makes two characters of some
            lower = [_lower().normalize_str(character) for character in text]
            text, whose = "".join(lower), [n for n, part in enumerate(lower) for _ in part]
        if self._native is not None:
            found = self._native.encode(text, add_special_tokens=False)
            ids, spans = found.ids, found.offsets
        else:
            ids = [self._ids.get(piece, UNK) for piece in self._pieces(text)]
            if self.kind == "word":
                spans = [span for _, span in _words().pre_tokenize_str(text)]
            elif self.kind == "byte":
                spans = [(n, n + 1) for n, character in enumerate(text) for _ in character.encode()]
            else:
                spans = [(n, n + 1) for n in range(len(text))]
        return ids, [(whose[first], whose[end - 1] + 1) if end > first else (0, 0) for first, end in spans]

    # -- ids to text ---------------------------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], words: Sequence[str] = ()) -> str:
        """The text; PAD, BOS and EOS vanish, UNK shows as ⟨unk⟩, bytes that are not UTF-8 as �. `words`: those of `encode_open`."""
        return self._whole(ids, words).decode("utf-8", "replace")

    def strings(self, ids: Iterable[int], words: Sequence[str] = ()) -> list[str]:
        """One label per token, for the rows and columns of attention weights. Part of a character shows as its bytes, \\xc3."""
        surfaces = ((i, self._surface_of(i, words)) for i in map(int, ids))
        shown = ((i, surface.replace(_GLUE, b"").strip() if self.kind == "word" else surface) for i, surface in surfaces)
        return [SPECIAL[i] if i < len(SPECIAL) else surface.decode("utf-8", "backslashreplace") for i, surface in shown]

    def word_numbers(self, ids: Iterable[int]) -> list[int]:
        """The index of the word that each token is part of; −1 for special tokens and for white space alone.

        Words are separated by ASCII white space, so tokens with number n make up `words(ids)[n]`.
        """
        numbers, word, inside, glued = [], -1, False, False
        for surface in (self._surface[i] for i in ids):
            mine = -1
            if self.kind == "word" and surface:
                inside = word >= 0 and (glued or surface.startswith(_GLUE))
                glued, surface = surface.endswith(_GLUE), surface.replace(_GLUE, b"").strip()
            for part in re.findall(rb"\s+|\S+", surface):
                if part.isspace():
                    inside = False
                    continue
                word, inside = word if inside else word + 1, True
                mine = word if mine < 0 else mine  # a token that spans words belongs to its first
            numbers.append(mine)
        return numbers

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Ids of these words joined by spaces, and the index of the word that each is part of; −1 for none."""
        ids = self.encode(" ".join(words))
        return ids, self.word_numbers(ids)

    def words(self, ids: Iterable[int]) -> list[str]:
        """The words that `word_numbers` counts."""
        return [word.decode("utf-8", "replace") for word in self._whole(ids).split()]

    def token_bytes(self) -> list[bytes] | None:
        """The bytes that each token adds to a text, none for special tokens; None if that depends on its neighbours, as for words."""
        return None if self.kind == "word" else [b"" if n in self.special_ids else surface for n, surface in enumerate(self._surface)]

    def _surface_of(self, number: int, words: Sequence[str]) -> bytes:
        return self._surface[number] if number < len(self._surface) else self._bytes_of(words[number - len(self)])

    def _whole(self, ids: Iterable[int], words: Sequence[str] = ()) -> bytes:
        whole = b"".join(self._surface_of(i, words) for i in ids)
        return b" ".join(re.sub(rb" *\xff+ *", b"", whole).split()) if self.kind == "word" else whole

    def _bytes_of(self, token: str) -> bytes:
        if token == SPECIAL[UNK]:
            return (f" {token} " if self.kind == "word" else token).encode()
        if self.kind in ("bpe", "byte"):
            return bytes(BYTE_OF[character] for character in token)
        if self.kind == "word":
            if not _is_mark(token.strip()):
                return f" {token} ".encode()
            return (b"" if token[0] == " " else _GLUE) + token.encode() + (b"" if token[-1] == " " else _GLUE)
        return token.encode()

    # -- on disk -------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        described = {"kind": self.kind, "vocabulary": list(self.vocabulary), "merges": [list(pair) for pair in self.merges]}
        return described | ({"lowercase": True} if self.lowercase else {})

    @classmethod
    def from_json(cls, described: Any, where: str = "tokenizer") -> Tokenizer:
        """The tokenizer that `to_json` described; BadFile says what is wrong with it."""
        if isinstance(described, dict) and described.get("kind") == "hf":
            from .hf_tokenizer import HFTokenizer  # it is a Tokenizer, so it imports this

            return HFTokenizer.from_json(described, where)
        if not isinstance(described, dict) or described.get("kind") not in get_args(Kind):
            raise BadFile(f"{where}: expected an object with a kind, one of {', '.join(get_args(Kind))}")
        kind, vocabulary, merges = described["kind"], described.get("vocabulary"), described.get("merges", [])
        if not isinstance(vocabulary, list) or not all(isinstance(token, str) and token for token in vocabulary):
            raise BadFile(f"{where}: vocabulary must be a list of strings, none empty")
        if tuple(vocabulary[: len(SPECIAL)]) != SPECIAL or len(set(vocabulary)) != len(vocabulary):
            raise BadFile(f"{where}: the vocabulary must begin with {' '.join(SPECIAL)} and hold no token twice")
        if kind in ("bpe", "byte") and (set(BYTES) - set(vocabulary) or set("".join(vocabulary[len(SPECIAL) :])) - set(BYTES)):
            raise BadFile(f"{where}: a vocabulary of {kind} holds a token for each of the 256 bytes, and nothing not made of them")
        known = set(vocabulary[len(SPECIAL) :])
        if not isinstance(merges, list) or not all(_is_merge(pair, known) for pair in merges) or (merges and kind != "bpe"):
            raise BadFile(f"{where}: merges must be pairs of tokens which joined are tokens too, and only bpe has them")
        try:
            return cls(kind, vocabulary, [(left, right) for left, right in merges], described.get("lowercase") is True)
        except UnicodeEncodeError as wrong:
            raise BadFile(f"{where}: a token that is not text: {wrong}") from wrong


class Tokenizers:
    """The tokenizer of the source and that of the target: one and the same (joint), or two.

    Args:
        source: tokenizer of the source.
        target: tokenizer of the target; that of the source if not given.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer | None = None):
        self.source = source
        self.target = source if target is None else target

    def __deepcopy__(self, memo: Any) -> Tokenizers:
        return self

    @property
    def joint(self) -> bool:
        return self.target is self.source

    @classmethod
    def train(
        cls,
        pairs: Sequence[tuple[str, str]],
        kind: TrainedKind = "bpe",
        vocab_size: int = 8000,
        joint: bool = True,
        min_count: int = 2,
        lowercase: bool = False,
    ) -> Tokenizers:
        """Trained on these pairs; give training pairs only: a vocabulary that has seen the test set flatters it.

        Args:
            pairs: source and target of each training pair.
            kind: kind of tokens.
            vocab_size: maximum number of tokens per tokenizer.
            joint: one tokenizer for both sides.
            min_count: occurrences that a token needs.
            lowercase: lower-case texts first.
        """
        if joint:
            return cls(Tokenizer.train((side for pair in pairs for side in pair), kind, vocab_size, min_count, lowercase))
        return cls(*(Tokenizer.train((pair[side] for pair in pairs), kind, vocab_size, min_count, lowercase) for side in (0, 1)))

    def save(self, path: str | Path) -> Path:
        """One JSON file: {"format": "regard.tokenizer", "format_version": 1, "tokenizers": [joint] or [source, target]}."""
        each = [self.source] if self.joint else [self.source, self.target]
        described = {"format": "regard.tokenizer", "format_version": VERSION, "tokenizers": [one.to_json() for one in each]}
        write_json(Path(path), described, indent=0)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizers:
        path = Path(path)
        try:
            described = read_json(path, LIMIT)
        except MissingFile as wrong:
            raise MissingFile(f"{path}: no such file; a tokenizer is written by Tokenizers.save") from wrong
        if not isinstance(described, dict) or described.get("format") != "regard.tokenizer":
            raise BadFile(f'{path}: lacks "format": "regard.tokenizer", so it was not written by Tokenizers.save')
        if described.get("format_version") != VERSION:
            raise BadFile(f"{path}: format_version {described.get('format_version')!r}; this regard reads {VERSION}")
        each = described.get("tokenizers")
        if not isinstance(each, list) or len(each) not in (1, 2):
            raise BadFile(f"{path}: tokenizers must be a list of one (joint) or two (source, target)")
        return cls(*(Tokenizer.from_json(one, f"{path}, tokenizer {n}") for n, one in enumerate(each)))


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as wrong:
        raise BadText(f"{text[:40]!r} holds half a surrogate pair ({wrong}); decode the bytes it came from as UTF-8") from wrong
    return text


def _stripped(text: str, first: int, end: int) -> tuple[int, int]:
    """The span without white space at its ends; an empty one stays at its end."""
    while first < end and text[end - 1].isspace():
        end -= 1
    while first < end and text[first].isspace():
        first += 1
    return first, end


def _is_mark(token: str) -> bool:
    return len(token) == 1 and not (token.isalpha() or token.isdecimal() or token == "_")


def _is_merge(pair: Any, known: set[str]) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(p, str) and p in known for p in pair) and "".join(pair) in known


# -- byte-pair encoding ------------------------------------------------------------------------------------------------


def _printable() -> list[str]:
    """One printable character per byte, as in byte-level BPE: printable bytes are themselves, the rest are numbered from 256."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(b if b in plain else next(others)) for b in range(256)]


BYTES = _printable()
BYTE_OF = {character: byte for byte, character in enumerate(BYTES)}


@cache
def _byte_level() -> pre_tokenizers.PreTokenizer:
    """Merges stay within its words; a space belongs to the word after it."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def bpe_applied(ids: Mapping[str, int], merges: Sequence[Merge]) -> tokenizers.Tokenizer:
    """The library's tokenizer for these ids. It has no added tokens: it would find their names inside a user's text."""
    native = tokenizers.Tokenizer(models.BPE(vocab=dict(ids), merges=list(merges)))
    native.pre_tokenizer = _byte_level()
    return native


def _bpe_trained(lines: Iterable[str], size: int, least: int) -> tuple[list[str], list[Merge]]:
    """At most `size` tokens, the 256 bytes first, and the merges in the order they are applied."""
    native = tokenizers.Tokenizer(models.BPE())
    native.pre_tokenizer = _byte_level()
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=least, initial_alphabet=BYTES, show_progress=False)
    native.train_from_iterator(lines, trainer)
    found = native.get_vocab(with_added_tokens=False)
    merges = json.loads(native.to_str())["model"]["merges"]
    # older versions of the library write a merge as "a b", newer ones as ["a", "b"]
    return sorted(found, key=found.__getitem__), [tuple(m.split(" ") if isinstance(m, str) else m) for m in merges]


def bpe_with_dropout(text: str, ranks: Mapping[Merge, int], dropout: float, generator: random.Random) -> list[str]:
    """The tokens when at each step each possible merge is skipped with probability `dropout`."""
    tokens, never = [], len(ranks)
    for word, _ in _byte_level().pre_tokenize_str(text):
        symbols = list(word)
        pairs = [ranks.get(pair, never) for pair in pairwise(symbols)]  # at each gap the rank of its merge
        while pairs:
            # the first by rank that is not skipped: the others need not be drawn
            left = pairs
            while (rank := min(left)) < never and generator.random() < dropout:
                left = left.copy()
                left[left.index(rank)] = never
            if rank == never:
                break
            at = left.index(rank)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
            del pairs[at]
            for gap in range(max(at - 1, 0), min(at + 1, len(pairs))):  # on both sides of the new symbol
                pairs[gap] = ranks.get((symbols[gap], symbols[gap + 1]), never)
        tokens += symbols
    return tokens
