"""Tokenizers and word embeddings that options ask for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..data import HFTokenizer, Tokenizer, Tokenizers, load_tokenizers
from ..data.vectors import read_vectors, vector_size
from ..errors import BadConfig
from ..models import Model, find_model, models
from .options import Pairs, TokenizerOptions, VectorOptions


def tokenizers_of(options: TokenizerOptions, texts: Sequence[str]) -> Tokenizers:
    """Load the tokenizer of --tokenizer-file, or train one.

    Args:
        options: options of the task.
        texts: texts to train on.
    """
    if options.tokenizer_file is not None:
        return load_tokenizers(options.tokenizer_file, options.lowercase)
    size = options.choose_vocab_size(sum(map(len, texts)))
    return Tokenizers(Tokenizer.train(texts, options.tokenizer, size, lowercase=options.lowercase))


def tokenizers_of_pairs(options: TokenizerOptions, pairs: Pairs, joint: bool = True) -> Tokenizers:
    """Load or train tokenizers for pairs of texts.

    Args:
        options: options of the task.
        pairs: pairs to train on.
        joint: one vocabulary for both sides; False: one for each.
    """
    if options.tokenizer_file is not None:
        return load_tokenizers(options.tokenizer_file, options.lowercase)
    size = options.choose_vocab_size(sum(len(source) + len(target) for source, target in pairs))
    return Tokenizers.train(pairs, options.tokenizer, size, joint, lowercase=options.lowercase)


def tokenizers_from(options: VectorOptions, base: Tokenizers) -> Tokenizers:
    """Take the tokenizers of --init-from, whose model has embeddings already; refuse --vectors.

    Args:
        options: options of the task.
        base: tokenizers of the run to initialise from.
    """
    if options.vectors is not None:
        raise BadConfig(
            f"--vectors {options.vectors} is for a new model; the embeddings of --init-from are trained already, omit one of the two"
        )
    return base


def vector_settings(options: VectorOptions, model: str) -> dict[str, int]:
    """Choose the width of the embeddings of a new model: that of the vectors.

    Args:
        options: options of the task.
        model: name of the model.
    """
    if options.vectors is None:
        return {}
    if options.tokenizer != "word":
        raise BadConfig(f"--vectors {options.vectors} has a vector per word; use it with --tokenizer word, not {options.tokenizer}")
    if "embedding" not in find_model(model).Config.__dataclass_fields__:
        known = ", ".join(sorted(kind.facts.name for kind in models().values() if "embedding" in kind.Config.__dataclass_fields__))
        raise BadConfig(f"--vectors: {model} has no word embeddings of a width of their own; models that have: {known}")
    return {"embedding": vector_size(options.vectors)}


def set_embeddings(options: VectorOptions, model: Model, tokenizer: Tokenizer | HFTokenizer) -> None:
    """Give the words of the vocabulary that --vectors has their vectors; the others keep their random ones.

    Args:
        options: options of the task.
        model: new model.
        tokenizer: its tokenizer.
    """
    if options.vectors is None:
        return
    embedding = next(part for part in model.modules() if isinstance(part, nn.Embedding) and part.num_embeddings == len(tokenizer))
    ids = {token.strip(): number for number, token in enumerate(tokenizer.vocabulary)}
    words, vector_ND = read_vectors(options.vectors, ids.keys())
    if not words:
        raise BadConfig(
            f"--vectors {options.vectors}: none of the {len(ids):,} words of the vocabulary is there; perhaps it wants --lowercase"
        )
    if vector_ND.shape[1] != embedding.embedding_dim:
        raise BadConfig(
            f"--vectors {options.vectors} has {vector_ND.shape[1]} numbers per word; omit --set embedding={embedding.embedding_dim}"
        )
    with torch.no_grad():
        embedding.weight[[ids[word] for word in words]] = torch.from_numpy(vector_ND)
