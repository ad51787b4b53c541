"""Modules of the `tokenizers` library, imported when one of their names is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._extras import lazy

if TYPE_CHECKING:
    import tokenizers as tokenizers
    from tokenizers import decoders as decoders
    from tokenizers import models as models
    from tokenizers import normalizers as normalizers
    from tokenizers import pre_tokenizers as pre_tokenizers
    from tokenizers import processors as processors
    from tokenizers import trainers as trainers
else:
    parts = ("decoders", "models", "normalizers", "pre_tokenizers", "processors", "trainers")
    tokenizers, decoders, models, normalizers, pre_tokenizers, processors, trainers = lazy(
        "train", "tokenizers", *(f"tokenizers.{part}" for part in parts)
    )
