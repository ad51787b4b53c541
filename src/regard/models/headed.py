"""A head over another model, which is called its body: a classifier, a reader of spans. Its config is that of the body."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Self

from ..patterns import PatternLike
from .model import AttentionChoice, Model


class Headed(Model):
    """A model with a head; `build(*config_of(body))` makes the body, and the task of a run adds the head again.

    Args:
        body: model below the head.
    """

    body: Model

    def __init__(self, body: Model):
        super().__init__()
        self.body, self.config, self.processor = body, body.config, body.processor

    @property
    def max_length(self) -> int:
        return self.body.max_length

    def with_attention(
        self, attention: AttentionChoice = None, *, pattern: PatternLike | None = None, layers: Iterable[int] | None = None
    ) -> Self:
        """A copy whose body has another mechanism: see `Model.with_attention`."""
        model = deepcopy(self)
        model.body = self.body.with_attention(attention, pattern=pattern, layers=layers)
        model.config = model.body.config
        return model


def body_of(model: Model) -> Model:
    """The model below the head, or the model itself.

    Args:
        model: any model.
    """
    return model.body if isinstance(model, Headed) else model
