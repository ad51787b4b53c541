"""What a family is: one architecture of transformers, which can be read from its files and written to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ._hf_config import HFConfig
from ._names import BaseNames, Entry, check_tied, from_hf, to_hf

Settings = Mapping[str, Any]  # of one of our models, as its config has them
SettingKeys = dict[str, str | tuple[str, Any]]  # our setting → the key in config.json, or (key, default) where it may be missing


@dataclass(frozen=True)
class ClassifierHead:
    """A class of transformers that classifies texts or tokens: its name, and the names of its output layer and pooler."""

    architecture: str
    output: str = "classifier"
    pooler: str = ""  # none


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture of transformers and the model of ours that computes the same.

    Two tables work in both directions: `settings` for config.json, `table` for the tensors. Two functions add what differs by more than
    a name, and refuse what the other side cannot compute. Missing and unknown tensors, and wrong shapes, are found by the caller.
    """

    model: str  # the name of our model
    model_types: tuple[str, ...]  # "model_type" of the config.json files it reads; the first is written
    settings: SettingKeys
    table: Callable[[Settings], list[Entry]]  # tensor names, ours and those of transformers' base model
    more_settings: Callable[[HFConfig], dict[str, Any]]  # config.json → further settings of our model
    more_config: Callable[[Any], dict[str, Any]]  # our model → the rest of config.json, "architectures" among it
    prefix: str = ""  # of the base model's tensors in the files of a model with a head
    base: str = ""  # the architecture without a head; its files have no prefix
    pooler: str = "pooler.dense"  # the base model's pooler
    tied: Mapping[str, str] = field(default_factory=dict)  # copies that files may hold → originals
    ignored: tuple[str, ...] = ()  # regular expressions: other tensors in the files that are not parameters
    extra_tensors: Callable[[Settings], dict[str, Tensor]] = lambda settings: {}  # written, but not read
    classifiers: Mapping[str, ClassifierHead] = field(default_factory=dict)  # of a "text", or of each "token"

    def to_settings(self, hf: HFConfig) -> dict[str, Any]:
        """The settings of our model, from config.json."""
        same = {ours: hf[key] if isinstance(key, str) else hf.get(*key) for ours, key in self.settings.items()}
        return same | self.more_settings(hf)

    def parameters(self, tensors: Mapping[str, Tensor], settings: Settings) -> dict[str, Tensor]:
        """The parameters of our model, from the tensors of transformers."""
        hf, table = BaseNames(tensors, self.prefix), self.table(settings)
        untied = {name for entry in table for name in entry.hf_names}
        for copy, original in self.tied.items():
            if copy not in untied:
                check_tied(hf, copy, original)
        return from_hf(hf, table)

    def export(self, model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """config.json and the tensors of transformers, from our model."""
        settings = vars(model.config)
        same = {key if isinstance(key, str) else key[0]: settings[ours] for ours, key in self.settings.items()}
        config = {"model_type": self.model_types[0]} | same | self.more_config(model)
        tensors = to_hf(model.state_dict(), self.table(settings)) | self.extra_tensors(settings)
        if not self.prefix or config["architectures"] == [self.base]:
            return config, tensors
        return config, {name if name.startswith(("cls.", "lm_head.")) else f"{self.prefix}.{name}": x for name, x in tensors.items()}
