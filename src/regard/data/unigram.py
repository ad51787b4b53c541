"""Tokenizers in the form of the `tokenizers` library: a trained unigram vocabulary, and a file that the user brings.

A unigram vocabulary holds pieces with a probability each, and a text becomes the most likely sequence of pieces. As in SentencePiece
spaces are part of pieces (▁), and characters that no piece holds become their bytes, so nothing is unknown.

Paper: Kudo 2018, "Subword regularization", arXiv:1804.10959.
We differ: text is not normalised, and no space is put before it, so that it decodes to itself (but ▁, which becomes a space).
The library's training adds up in an order that varies: scores are rounded, which leaves differences to ties.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ..errors import BadFile, MissingFile, NotSupported
from ._tokenizers_library import decoders, models, normalizers, pre_tokenizers, tokenizers, trainers
from .hf_tokenizer import USUAL, HFTokenizer
from .tokens import BOS, EOS, PAD, SPECIAL, UNK, Tokenizers

BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
NEEDED = {
    "pad": SPECIAL[PAD],
    "bos": SPECIAL[BOS],
    "eos": SPECIAL[EOS],
    "mask": "⟨mask⟩",
}  # what a user's tokenizer is given if it lacks it


def train_unigram(lines: Iterable[str], vocab_size: int, lowercase: bool = False) -> HFTokenizer:
    """A vocabulary of at most `vocab_size` pieces: special tokens, 256 bytes, and pieces of the text."""
    least = len(SPECIAL) + len(BYTE_PIECES) + 1
    if vocab_size < least:
        raise NotSupported(f"vocab_size={vocab_size}: unigram needs at least {least} (special tokens, 256 bytes, and a piece); raise it")
    native = tokenizers.Tokenizer(models.Unigram())
    native.pre_tokenizer = _pre_tokenizer()
    native.normalizer = normalizers.Lowercase() if lowercase else None
    size = vocab_size - len(SPECIAL) - len(BYTE_PIECES)
    native.train_from_iterator(lines, trainers.UnigramTrainer(vocab_size=size, show_progress=False, max_piece_length=24))
    pieces = {piece: round(score, 5) for piece, score in json.loads(native.to_str())["model"]["vocab"]}
    ranked = sorted(pieces.items(), key=lambda one: (-one[1], one[0]))[:size]
    lowest = min(score for _, score in ranked) - 10.0 if ranked else -10.0  # a byte only where no piece fits
    vocabulary = [*((name, 0.0) for name in SPECIAL), *ranked, *((piece, lowest) for piece in BYTE_PIECES)]
    made = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=UNK, byte_fallback=True))
    made.normalizer, made.pre_tokenizer = native.normalizer, _pre_tokenizer()
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return HFTokenizer(made, {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK})


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Pieces stay within a word and the space before it; line ends are pieces of their own, and text that spells a special piece is cut."""
    names = "|".join(name[1:] for name in SPECIAL)
    lines = pre_tokenizers.Split(tokenizers.Regex(rf"\n+|<(?=0x[0-9A-F]{{2}}>)|⟨(?={names})"), "isolated")
    return pre_tokenizers.Sequence([lines, pre_tokenizers.Metaspace("▁", prepend_scheme="never", split=True)])


def load_tokenizers(path: str | Path, lowercase: bool = False) -> Tokenizers:
    """The tokenizers in a file: tokenizer.json of the `tokenizers` library, alone or with its neighbours in a folder, or of one of our runs.

    Special tokens that it lacks (to pad, begin and end a text, to mask a token) are added after its own.

    Args:
        path: file or folder.
        lowercase: refused: the file decides how text is normalised.
    """
    path = Path(path)
    if not path.exists():
        raise MissingFile(f"{path}: no such file; name a tokenizer.json, or a folder that holds one")
    file = path / "tokenizer.json" if path.is_dir() else path
    if lowercase:
        raise NotSupported(f"--lowercase with --tokenizer-file {path}: that tokenizer decides how text is normalised; omit --lowercase")
    if file.exists() and _is_ours(file):
        return Tokenizers.load(file)
    found = HFTokenizer.from_directory(file.parent) if path.is_dir() or file.name == "tokenizer.json" else _alone(file)
    if found is None:
        raise MissingFile(f"{path}: no tokenizer.json in it")
    return Tokenizers(_completed(found))


def _alone(file: Path) -> HFTokenizer:
    try:
        native = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as wrong:  # the library raises nothing narrower
        raise BadFile(f"{file}: not a file of the tokenizers library: {str(wrong)[:200]}") from wrong
    ids = native.get_vocab(with_added_tokens=True)
    return HFTokenizer(native, {role: ids[name] for role, usual in USUAL.items() for name in reversed(usual) if name in ids})


def _completed(tokenizer: HFTokenizer) -> HFTokenizer:
    has = tokenizer.roles
    stands_in = {"bos": {"bos", "cls"}, "eos": {"eos", "sep"}}  # a text may begin with [CLS] and end with [SEP]
    lacking = [role for role in NEEDED if not has.keys() & stands_in.get(role, {role})]
    if not lacking:
        return tokenizer
    native = tokenizers.Tokenizer.from_str(tokenizer._library.to_str())
    native.add_special_tokens([tokenizers.AddedToken(NEEDED[role], special=True, normalized=False) for role in lacking])
    ids = native.get_vocab(with_added_tokens=True)
    return HFTokenizer(native, {**has} | {role: ids[NEEDED[role]] for role in lacking})


def _is_ours(file: Path) -> bool:
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as wrong:
        raise BadFile(f"{file}: not a tokenizer in JSON: {str(wrong)[:200]}") from wrong
    return isinstance(described, dict) and described.get("format") == "regard.tokenizer"
