"""Published checkpoints in and out: a directory with config.json and safetensors becomes a model here, and back.

    model = regard.load("path/to/bert")                       a directory of transformers, or a run of ours
    import_checkpoint("path/to/bert", "runs/bert")            a run, to train on, look at, serve
    export_run("runs/bert", "out")                            a directory that transformers' from_pretrained reads

Only JSON and safetensors are read. Pickled weights (pytorch_model.bin, .pt, .ckpt) are refused: reading one runs whatever code its
author, or whoever changed it since, put in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..data import BorrowedTokenizer, Tokenizers
from ..errors import BadFile, CannotSave, Misfit, MissingFile, NotSupported, RunExists, UnknownName
from ..models import Labeller, Longformer, Model, TextEncoder, build, config_of
from ..models._encoder import Encoder
from ..models._model import Spec
from ..patterns import Full
from ..tasks.run import load_model, read_config, write_config
from ..train.weights import load_weights, weights_of
from ._families import FAMILIES, Family
from ._labels import Told, labelled

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack", ".ot")


def load(folder: Path | str) -> Model:
    """The model of a run of ours, or of a directory of transformers, with its weights, in float32, ready to use."""
    folder = Path(folder)
    described = _described(folder)
    if "format_version" in described:
        return load_model(folder, read_config(folder)).eval()
    return _checkpoint(folder, described)


def load_tokenizers(folder: Path | str) -> Tokenizers | None:
    """The tokenizer that goes with it; None if the directory has none."""
    folder = Path(folder)
    if "format_version" in _described(folder):
        return Tokenizers.load(folder / "tokenizer.json") if (folder / "tokenizer.json").exists() else None
    borrowed = BorrowedTokenizer.found(folder)
    return None if borrowed is None else Tokenizers(borrowed)


def import_checkpoint(folder: Path | str, out: Path | str) -> Model:
    """A directory of transformers as a run of ours: config.json, model.safetensors, and tokenizer.json if it has one."""
    folder, out = Path(folder), Path(out)
    described = _described(folder)
    if "format_version" in described:
        raise BadFile(f"{folder} is a run already; `regard export` makes a directory of transformers of it")
    _empty(out)
    model, tokenizers, told = _checkpoint(folder, described), load_tokenizers(folder), Told.of(described)
    about = {"type": described["model_type"]} | ({"task": told.task, "labels": list(told.labels), "data": ""} if told else {})
    write_config(out, told.task if told else "import", about, config_of(model.body if isinstance(model, Labeller) else model), {})
    _save(weights_of(model), out / WEIGHTS)
    if tokenizers is not None:
        tokenizers.save(out / "tokenizer.json")
    return model


def export_run(folder: Path | str, out: Path | str) -> Model:
    """A run of ours as a directory that transformers reads."""
    folder, out = Path(folder), Path(out)
    model, tokenizers = load(folder), load_tokenizers(folder)
    described = _described(folder)
    body = model.body if isinstance(model, Labeller) else model
    if isinstance(body, Longformer) and tokenizers is not None and not isinstance(tokenizers.source, BorrowedTokenizer):
        raise NotSupported(
            f"transformers' Longformer takes token 1 for padding, and in the vocabulary of {folder} it begins every text, so places would "
            "differ; export a Longformer with a vocabulary of its own kind, as imported ones have"
        )
    export(model, out, described.get("settings", {}).get("labels", ()))
    if tokenizers is not None and tokenizers.joint:
        borrowed = BorrowedTokenizer.of(tokenizers.source, framed=isinstance(body, TextEncoder))
        if borrowed is not None:
            borrowed.publish(out, kinds=isinstance(body, Encoder) and body.config.kinds > 1)
    return model


def export(model: Model, out: Path | str, labels: Sequence[str] = ()) -> None:
    """config.json and model.safetensors as transformers writes them; `labels` are the names of what a fine-tuned model tells apart."""
    out, body = Path(out), model.body if isinstance(model, Labeller) else model
    families = [family for family in FAMILIES if body.facts.name in family.NAMES]
    if not families:
        known = ", ".join(name for family in FAMILIES for name in family.NAMES)
        raise NotSupported(f"transformers has no model that a {body.facts.name} of ours could be written as; those that can be: {known}")
    patterns = [f"{path} looks by {spec}" for path, spec in body.config.swapped if not isinstance(Spec.read(spec).pattern, Full)]
    if patterns:
        raise NotSupported(
            f"files of transformers hold no patterns, and {patterns[0]}; export what they can hold: model.with_attention(pattern=full)"
        )
    config, tensors = families[0].exported(body)
    if isinstance(model, Labeller):
        config, tensors = labelled(model, labels, config, tensors)
    _empty(out)
    out.mkdir(parents=True, exist_ok=True)
    _save(tensors, out / WEIGHTS)
    (out / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _checkpoint(folder: Path, described: Mapping[str, Any]) -> Model:
    family = _family(folder, described)
    with ExitStack() as opened:
        tensors, told = _Tensors(_files(folder), opened), Told.of(described)
        head = tensors.head(told, folder) if told else {}
        name, settings = family.config({**described, "tensors": tuple(tensors)})
        model = build(name, settings)
        _fill(model, family, tensors, settings, folder)
        if told:
            model = Labeller(model, len(told.labels), each=told.task == "label")
            load_weights(model.output, head, str(folder))
    return model.eval()


def _fill(model: Model, family: Family, tensors: _Tensors, settings: Mapping[str, Any], folder: Path) -> None:
    missing: list[str] = []
    found: dict[str, Tensor] = {}
    try:
        found = family.weights(tensors, settings)
    except Misfit as wrong:
        missing = wrong.missing
    except KeyError as wrong:
        missing = [str(wrong.args[0])]
    unknown = [name for name in tensors if name not in tensors.asked and not any(re.search(rule, name) for rule in family.BUFFERS)]
    own = weights_of(model)
    sizes = [
        f"{name} is {tuple(x.shape)}, not {tuple(own[name].shape)}"
        for name, x in found.items()
        if name in own and x.shape != own[name].shape
    ]
    if found:
        missing += [name for name in own if name not in found]
        unknown += [name for name in found if name not in own]
    if missing or unknown or sizes:
        raise Misfit(f"{folder} is no {model.facts.name} as its config.json describes it", missing, unknown, sizes)
    load_weights(model, found, str(folder))


class _Tensors(Mapping[str, Tensor]):
    """The tensors of some files, read when they are wanted; `asked` are the names someone knew."""

    def __init__(self, files: Mapping[Path, list[str] | None], opened: ExitStack):
        self.asked: set[str] = set()
        self.where: dict[str, tuple[Any, str]] = {}  # the file, and what it is called there
        for path, expected in files.items():
            try:
                file = opened.enter_context(safe_open(path, framework="pt"))
            except FileNotFoundError as wrong:
                raise MissingFile(f"{path}: no such file, and {INDEX} names it") from wrong
            except (OSError, SafetensorError) as wrong:
                raise BadFile(f"{path}: not a file of safetensors: {wrong}") from wrong
            names = list(file.keys())
            lost = [name for name in expected or () if name not in names]
            if lost:
                raise Misfit(f"{path} lacks what {INDEX} says it holds", lost)
            self.where |= {name: (file, name) for name in (names if expected is None else expected)}

    def head(self, told: Told, folder: Path) -> dict[str, Tensor]:
        """The output layer of a fine-tuned model. The rest is then as if it had not been fine-tuned."""
        try:
            found = {kind: self[f"{told.head.output}.{kind}"] for kind in ("weight", "bias")}
        except KeyError as wrong:
            raise Misfit(f"{folder} is no {told.head.architecture}", [str(wrong.args[0])]) from wrong
        if len(found["weight"]) != len(told.labels):
            raise Misfit(f"{folder} has {len(told.labels)} labels and scores for {len(found['weight'])}")
        for kind in ("weight", "bias"):
            del self.where[f"{told.head.output}.{kind}"]
            if told.head.pooler and f"{told.head.pooler}.{kind}" in self.where:
                self.where[f"{told.pooler}.{kind}"] = self.where.pop(f"{told.head.pooler}.{kind}")
        return found

    def __getitem__(self, name: str) -> Tensor:
        file, stored = self.where[name]
        self.asked.add(name)
        tensor: Tensor = file.get_tensor(stored)
        if not tensor.dtype.is_floating_point or tensor.element_size() < 2:
            raise BadFile(
                f"{name} is {tensor.dtype}: weights that were quantised are not read; save the model in float32, float16 or bfloat16"
            )
        return tensor.float()

    def __contains__(self, name: object) -> bool:
        if name not in self.where:
            return False
        self.asked.add(str(name))
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.where)

    def __len__(self) -> int:
        return len(self.where)


def _described(folder: Path) -> dict[str, Any]:
    if folder.is_file():
        _refuse_pickles([folder])
        raise BadFile(f"{folder} is a file; name the directory that holds config.json")
    path = folder / "config.json"
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as wrong:
        if folder.is_dir():
            _refuse_pickles(folder.iterdir())
        raise MissingFile(f"{path}: no such file, so {folder} is neither a run nor a directory of transformers") from wrong
    except (OSError, ValueError, RecursionError) as wrong:
        raise BadFile(f"{path}: not JSON: {wrong}") from wrong
    if not isinstance(described, dict) or not {"format_version", "model_type"} & described.keys():
        raise BadFile(f"{path}: expected an object with format_version (a run of ours) or model_type (a directory of transformers)")
    return described


def _family(folder: Path, described: Mapping[str, Any]) -> Family:
    kind = described["model_type"]
    for family in FAMILIES:
        if kind in family.TYPES:
            return family
    raise UnknownName(
        f"family of models ({folder / 'config.json'}: model_type)", str(kind), [name for each in FAMILIES for name in each.TYPES]
    )


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """The files of weights, and of sharded ones which names each holds."""
    if (folder / WEIGHTS).exists():
        return {folder / WEIGHTS: None}
    index = folder / INDEX
    if not index.exists():
        _refuse_pickles(folder.iterdir())
        raise MissingFile(f"{folder} holds neither {WEIGHTS} nor {INDEX}")
    try:
        placed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards: dict[Path, list[str] | None] = {}
        for name, file in placed.items():
            if Path(file).name != file or not file.endswith(".safetensors"):
                raise BadFile(f"{index}: {name} is said to be in {file!r}; expected a file of safetensors beside the index")
            names = shards.setdefault(folder / file, [])
            assert names is not None
            names.append(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        if isinstance(wrong, BadFile):
            raise
        raise BadFile(f"{index}: not an index of safetensors: {wrong}") from wrong
    return shards


def _refuse_pickles(paths: Any) -> None:
    found = sorted(path.name for path in paths if path.suffix.lower() in PICKLED)
    if found:
        raise BadFile(
            f"{found[0]} is not read: a pickled checkpoint is a program, and reading it runs it. Where you trust it, write it anew as safetensors: "
            'transformers.AutoModel.from_pretrained("DIR").save_pretrained("OUT")'
        )


def _empty(out: Path) -> None:
    if (out / "config.json").exists():
        raise RunExists(f"{out} holds a model already; choose another place")


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: x.detach().contiguous().clone() for name, x in tensors.items()}, path, metadata={"format": "pt"})
    except (OSError, SafetensorError) as wrong:
        raise CannotSave(f"{path}: {wrong}") from wrong
