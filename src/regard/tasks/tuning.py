"""Fine-tuning of a pretrained model: frozen layers, adapters, layer-wise learning rates."""

from __future__ import annotations

from torch import nn

from ..errors import BadConfig
from ..layers import LoRALinear
from ..models import Model, build, config_of
from ..train import depths
from ..train.parameters import load_parameters, parameters_of


def with_pooler(body: Model) -> Model:
    """The encoder with a new pooler, if its kind may have one and it has none."""
    name, settings = config_of(body)
    if settings.get("pooler", True):
        return body
    richer = build(name, {**settings, "pooler": True})
    own = parameters_of(richer)
    load_parameters(richer, {**own, **parameters_of(body)})
    return richer


def with_texts(body: Model, texts: int) -> Model:
    """The encoder for as many texts per example as the data has; layers over the features of a pair are new then."""
    name, settings = config_of(body)
    if settings.get("texts", texts) == texts:
        return body
    other = build(name, {**settings, "texts": texts})
    own, learned = parameters_of(other), parameters_of(body)
    load_parameters(other, {name: learned[name] if learned[name].shape == x.shape else x for name, x in own.items()})
    return other


def require_lora(model: nn.Module, rank: int) -> None:
    """Refuse adapters where there is no pretrained model."""
    if rank and not any(isinstance(part, LoRALinear) for part in model.modules()):
        raise BadConfig(f"--lora-rank {rank} adapts a pretrained model; name it with --init-from, and omit --from-scratch")


def freeze_layers(model: nn.Module, share: float) -> int:
    """Freeze the embeddings and the lower `share` of the layers; returns the number of frozen parameters."""
    depth = depths(model)
    layers = max(depth.values()) - 1  # the classification head is above them
    frozen = 0
    for name, parameter in model.named_parameters():
        if share > 0 and depth[name] <= share * layers:
            parameter.requires_grad_(False)
            frozen += parameter.numel()
    return frozen
