"""mBART in transformers' files: BART with norms before each part and after each stack."""

from __future__ import annotations

from .bart import BartFamily


class MBartFamily(BartFamily):
    model_types = ("mbart",)
    architecture = "MBart"
    placement = "pre"
