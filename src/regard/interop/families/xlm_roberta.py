"""XLM-RoBERTa and CamemBERT in transformers' files: RoBERTa trained on other texts. They are written as a RoBERTa."""

from __future__ import annotations

from typing import ClassVar

from ..family import Classifiers
from .roberta import RobertaFamily, roberta_heads


class XLMRobertaFamily(RobertaFamily):
    model_types = ("xlm-roberta",)
    architecture = "XLMRoberta"
    prefix = "roberta"
    classifiers: ClassVar[Classifiers] = roberta_heads("XLMRoberta")


class CamembertFamily(RobertaFamily):
    model_types = ("camembert",)
    architecture = "Camembert"
    prefix = "roberta"
    classifiers: ClassVar[Classifiers] = roberta_heads("Camembert")
