"""Mechanisms, models, tasks, recipes and patterns by name, with their facts as plain dictionaries: for the command line and the page."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, asdict, fields
from typing import Any, Literal, get_args

from .docstrings import field_help, notes
from .errors import UnknownName
from .registry import load_plugins

# Whatever is listed needs PyTorch, which takes seconds to import: hence the imports inside functions.

Kind = Literal["mechanisms", "models", "tasks", "recipes", "patterns"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Well-known systems that are not here: what they are, and the nearest that is. Others are called unknown, with names that are spelled alike.
ABSENT: dict[str, tuple[str, tuple[str, ...]]] = {
    "capsnet": ("capsule networks", ("routing",)),
    "cnp": ("conditional neural processes", ("neural_process", "attentive_neural_process")),
    "deepsets": ("Deep Sets", ("set_transformer",)),
    "deit": ("DeiT", ("vit",)),
    "detr": ("DETR", ("vit", "set_transformer")),
    "diffusion": ("diffusion models", ("dalle", "image_transformer")),
    "elmo": ("ELMo", ("rnn_lm", "bert")),
    "flamingo": ("Flamingo", ("clip", "show_attend_tell")),
    "flash_attention": ("FlashAttention, a kernel; softmax attention is computed by PyTorch's where it fits", ("softmax",)),
    "gaussian_process": ("Gaussian processes as a model", ("attentive_neural_process", "functions")),
    "gcn": ("graph convolutional networks", ("gat",)),
    "gqa": ("a name for grouped queries; they are kv_heads of any model that has heads", ("llama", "softmax")),
    "hyena": ("Hyena", ("state_space_duality",)),
    "informer": ("Informer", ("attentive_neural_process", "functions")),
    "lstm": ("a plain LSTM", ("rnn_lm", "seq2seq")),
    "mamba": ("Mamba; its second version is a mechanism", ("state_space_duality",)),
    "mamba2": ("Mamba-2 under this name", ("state_space_duality",)),
    "memory_networks": ("memory networks", ("softmax", "draw")),
    "ntm": ("neural Turing machines", ("draw", "location")),
    "pct": ("the Point Cloud Transformer", ("set_transformer",)),
    "perceiver": ("the Perceiver", ("set_transformer",)),
    "perceiver_io": ("Perceiver IO", ("set_transformer",)),
    "pixelcnn": ("PixelCNN", ("image_transformer",)),
    "point_transformer": ("the Point Transformer", ("set_transformer",)),
    "pointer_network": ("pointer networks", ("pointer_generator", "set_transformer")),
    "pointnet": ("PointNet", ("set_transformer",)),
    "resnet": ("residual convolutional networks", ("vit", "mlp_mixer")),
    "retnet": ("RetNet as a model; its mechanism is here", ("retention",)),
    "rwkv": ("RWKV", ("gated_linear", "gated_delta")),
    "slot_attention": ("slot attention", ("set_transformer",)),
    "stable_diffusion": ("Stable Diffusion", ("dalle",)),
    "swin": ("Swin", ("vit", "axial_row")),
    "switch_transformer": ("the Switch Transformer", ("mixtral",)),
    "transformer_xl": ("Transformer-XL as a model; its recurrence is a layer", ("xl2019",)),
    "unet": ("U-Net", ("image_transformer",)),
    "universal_transformer": ("the Universal Transformer", ("albert",)),
    "vae": ("variational autoencoders as a model", ("draw", "dalle")),
    "wav2vec": ("wav2vec", ("transformer",)),
    "whisper": ("Whisper", ("transformer",)),
    "word2vec": ("word2vec; its vectors can be read with --vectors", ("classify",)),
    "xlnet": ("XLNet", ("bert", "xl2019")),
}


def mechanisms() -> dict[str, Any]:
    """Every mechanism by name, oldest first, then registered ones."""
    from .attention import mechanisms

    return dict(mechanisms())


def models() -> dict[str, Any]:
    """Every published system by name."""
    from .models import models

    return dict(models())


def tasks() -> dict[str, Any]:
    """Every task by name."""
    from .tasks import tasks

    return dict(tasks())


def recipes() -> dict[str, Any]:
    """Every claim that can be run, by name."""
    from .recipes import recipes

    return dict(recipes())


def patterns() -> dict[str, Any]:
    """Every rule that a pattern can be written with, by name: patterns, and functions that make one."""
    from .patterns import RULES, VALUES

    return VALUES | RULES


def listed(kind: Kind) -> dict[str, Any]:
    """One of the lists.

    Args:
        kind: mechanisms, models, tasks, recipes or patterns.
    """
    load_plugins()
    return {"mechanisms": mechanisms, "models": models, "tasks": tasks, "recipes": recipes, "patterns": patterns}[kind]()


def find(name: str) -> Any:
    """The mechanism, model, task or recipe called `name`; the name of the class will do too. `UnknownName` names the nearest.

    Args:
        name: name of an entry, or of its class; upper case and hyphens do not matter.
    """
    load_plugins()
    known = mechanisms() | models() | tasks() | recipes()
    classes = {entry.__name__: entry for entry in known.values() if isinstance(entry, type)}
    folded = {fold(key): entry for key, entry in (classes | known).items()}
    if fold(name) not in folded:
        raise UnknownName("mechanism, model, task or recipe", name, known, absent(name))
    return folded[fold(name)]


def rows(kind: Kind = "mechanisms") -> list[dict[str, Any]]:
    """The facts as plain dictionaries: what `regard list --json` prints.

    Args:
        kind: mechanisms, models, tasks, recipes or patterns.
    """
    if kind == "patterns":
        return [_pattern_row(name, rule) for name, rule in patterns().items()]
    return [row(entry) for entry in listed(kind).values()]


def row(entry: Any) -> dict[str, Any]:
    """The facts of one entry.

    Args:
        entry: a mechanism, model, task or recipe.
    """
    from .attention import Attention

    summary, kind = (inspect.getdoc(entry) or "").partition("\n")[0], getattr(entry, "__name__", type(entry).__name__)
    facts = {"name": entry.name, "model": entry.default_model} if not hasattr(entry, "facts") else asdict(entry.facts)
    if isinstance(entry, type) and issubclass(entry, Attention):
        paper, state = entry.facts.paper, entry.facts.state
        facts |= {"title": paper.title, "year": paper.year, "paper": paper.where, "causal": entry.facts.causal}
        facts["state"] = None if state is None else state.__name__
    if hasattr(entry, "question"):
        summary = entry.question
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in facts.items()}
    return {"name": plain["name"], "class": kind, "summary": summary} | plain


def details(kind: Kind) -> list[dict[str, Any]]:
    """The facts of a list and all that `regard show` says about each entry, as plain values.

    Args:
        kind: mechanisms, models, tasks, recipes or patterns.
    """
    return [facts | _details(kind, entry) for facts, entry in zip(rows(kind), listed(kind).values(), strict=True)]


def _details(kind: Kind, entry: Any) -> dict[str, Any]:
    if kind == "tasks":
        from .runs import to_plain

        return {"notes": {}, "doc": inspect.getdoc(entry), "options": to_plain(entry.Options()), "train": to_plain(entry.default_train)}
    if kind == "recipes":
        return {"notes": {}, "claims": [claim.text for claim in entry.claims], "variants": list(entry.variants), "seeds": list(entry.seeds)}
    if kind == "models":
        return {"notes": notes(entry), "settings": settings(entry.Config), "sizes": list(entry.sizes)}
    return {"notes": notes(entry)} if kind == "mechanisms" else {}


def _pattern_row(name: str, rule: Any) -> dict[str, Any]:
    from .patterns import Pattern

    if isinstance(rule, Pattern):
        return {"name": name, "arguments": "", "summary": (inspect.getdoc(type(rule)) or "").partition("\n")[0]}
    signature = ", ".join(str(part).partition(":")[0] + _default(part) for part in inspect.signature(rule).parameters.values())
    return {"name": name, "arguments": signature, "summary": (inspect.getdoc(rule) or "").partition("\n")[0]}


def _default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is parameter.empty else f"={parameter.default}"


def settings(config: type[Any]) -> list[dict[str, str]]:
    """Every setting of a model: its name, its default (empty where it must be given) and what it means.

    Args:
        config: config class of a model.
    """
    said = field_help(config)
    return [
        {"name": field.name, "default": "" if field.default is MISSING else str(field.default), "meaning": said.get(field.name, "")}
        for field in fields(config)
        if field.name != "attention_overrides"  # internal: what `with_attention` records
    ]


def absent(name: str) -> str:
    """Say that a well-known system is not here, and what is nearest to it; empty if the name is not in the table.

    Args:
        name: name as it was typed; upper case, hyphens and spaces do not matter.
    """
    alike = {key.replace("_", ""): found for key, found in ABSENT.items()}
    found = alike.get(fold(name).replace("_", "").replace(" ", "").removesuffix("s")) or alike.get(
        fold(name).replace("_", "").replace(" ", "")
    )
    return "" if found is None else f"regard does not have {found[0]}; the nearest that it has: regard show {' or '.join(found[1])}"


def fold(name: str) -> str:
    """Fold a name to the form that people type in a terminal: lower case, underscores.

    Args:
        name: name as it was typed.
    """
    return name.lower().replace("-", "_")
