"""Family: one architecture of transformers, which can be read from its files and written to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..errors import BadConfig, RegardError
from .hf_config import HFConfig
from .names import Entry, to_hf
from .processor_files import ProcessorFiles
from .text_files import TEXT

Settings = Mapping[str, Any]  # of one of our models, as its config has them
SettingKeys = dict[str, str]  # our setting → the key in config.json
DECODER: SettingKeys = {  # what most language models call alike
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "depth": "num_hidden_layers",
    "tied": "tie_word_embeddings",
}
Constants = tuple[tuple[str, Callable[[Tensor, Settings], bool]], ...]  # pattern of names → whether the values are the expected ones


SPANS = "qa_outputs"  # the output layer of classes that answer questions


@dataclass(frozen=True)
class ClassifierHead:
    """A class of transformers with a head for texts, tokens or spans: its name, and the names of its output layer and pooler."""

    architecture: str
    output: str = "classifier"
    pooler: str = ""  # none


Classifiers = Mapping[str, ClassifierHead]  # heads over a "text", each "token", or the "span" that answers a question


class Family:
    """One architecture of transformers and our model that computes the same.

    Two tables work in both directions: `settings` for config.json, `table` for the tensors. `more_settings` and `more_config` add what
    differs by more than a name, and refuse what the other side cannot compute. Missing and unknown tensors, and wrong shapes, are found by
    the caller.
    """

    model: str  # the name of our model
    model_types: tuple[str, ...]  # "model_type" of the config.json files it reads; the first is written
    settings: ClassVar[SettingKeys]
    prefix: str = ""  # prefix of the base model's tensors in the files of a model with a head
    heads: tuple[str, ...] = ("cls.", "lm_head.")  # beginnings of the names of heads, which have no prefix
    base: str = ""  # the architecture without a head; its files have no prefix
    pooler: str = "pooler.dense"  # the base model's pooler
    tied: tuple[tuple[str, str], ...] = ()  # copies that files may hold, and originals
    constants: Constants = ()  # tensors in some files that are not parameters
    classifiers: ClassVar[Classifiers] = {}
    own_heads: tuple[str, ...] = ()  # architectures whose classification head is a part of our model
    files: ProcessorFiles = TEXT  # files that are read and written besides the model

    def table(self, settings: Settings) -> list[Entry]:
        """Tensor names, ours and those of transformers' base model."""
        raise NotImplementedError

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        """Further settings of our model, from config.json."""
        return {}

    def more_config(self, model: Any) -> dict[str, Any]:
        """The rest of config.json, "architectures" among it, from our model."""
        raise NotImplementedError

    def extra_tensors(self, settings: Settings) -> dict[str, Tensor]:
        """Tensors that are written, but not read."""
        return {}

    def fits(self, model: Any) -> bool:
        """True if it can hold the model; the first family that fits is written."""
        return True

    def difference(self, settings: Settings) -> str:
        """Where results differ from transformers', as a sentence for users who load a checkpoint; "" if nowhere."""
        return ""

    def to_settings(self, hf: HFConfig) -> dict[str, Any]:
        """The settings of our model, from config.json."""
        try:
            found = {ours: hf[key] for ours, key in self.settings.items()} | self.more_settings(hf)
        except RegardError:
            raise
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as wrong:
            raise BadConfig(f"config.json does not describe a {hf.model_type}: {wrong}") from wrong
        hf.refuse_unread()
        return found

    def check_others(self, hf: Mapping[str, Tensor], settings: Settings) -> list[str]:
        """Compare the tensors that are not parameters with what they should be; return the names that nothing here knows."""
        used, unknown = {name for entry in self.table(settings) for name in entry.hf_names}, []
        for name in hf:
            if name in used:
                continue
            originals = [original for copy, original in self.tied if copy == name and original in hf]
            tests = [test for pattern, test in self.constants if re.search(pattern, name)]
            if not originals and not tests:
                unknown.append(name)
            elif any(not hf[name].equal(hf[original]) for original in originals):
                raise BadConfig(f"{name} differs from {' and '.join(originals)}: this model ties them")
            elif not all(test(hf[name], settings) for test in tests):
                raise BadConfig(
                    f"{name} is not a parameter of {self.model_types[0]}, and its values differ from those that transformers computes"
                )
        return unknown

    def export(self, model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """config.json and the tensors of transformers, from our model."""
        settings = vars(model.config)
        config = (
            {"model_type": self.model_types[0]} | {key: settings[ours] for ours, key in self.settings.items()} | self.more_config(model)
        )
        tensors = to_hf(model.state_dict(), self.table(settings)) | self.extra_tensors(settings)
        if not self.prefix or config["architectures"] == [self.base]:
            return config, tensors
        return config, {name if name.startswith(self.heads) else f"{self.prefix}.{name}": x for name, x in tensors.items()}
