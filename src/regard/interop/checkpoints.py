"""Published checkpoints in and out: a directory with config.json and safetensors becomes a model here, and back.

    run = load_run("path/to/bert")                            a run in memory; regard.load_run takes runs of ours, too
    import_checkpoint("path/to/bert", "runs/bert")            a run on disk, to train, inspect and serve
    export_run(run, "out")                                    a directory that transformers' from_pretrained reads

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

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..data import HFTokenizer, Tokenizers
from ..errors import BadFile, CannotSave, Misfit, MissingFile, NotSupported, RunExists, UnknownName
from ..models import Classifier, Longformer, Model, TextEncoder, build
from ..models._encoder import Encoder
from ..models._model import Spec
from ..patterns import Full
from ..runs import Run, read_json, save
from ..tasks import TextProcessor, make_run, task_for
from ..train.parameters import compare_parameters, load_parameters
from ._classifiers import LabelHead, export_classifier
from ._families import FAMILIES
from ._family import Family
from ._hf_config import HFConfig

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PROBLEMS = {
    "multi_label": "multi_label_classification",
    "regression": "regression",
}  # options of `classify`, and what transformers calls them
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack", ".ot")


def load_run(folder: Path | str, described: Mapping[str, Any] | None = None) -> Run[Model]:
    """A transformers directory as a run in memory, of the task that its model is for; parameters in float32, ready to use.

    `described` is its config.json, if that has been read.
    """
    folder = Path(folder)
    described = _described(folder) if described is None else described
    model, label_head = _checkpoint(folder, described), LabelHead.from_config(described)
    borrowed = HFTokenizer.from_directory(folder)
    processor = TextProcessor(None if borrowed is None else Tokenizers(borrowed), label_head.labels if label_head else (), str(folder))
    return make_run(task_for(type(model), isinstance(model, Classifier) and model.each), model, processor, folder=folder)


def import_checkpoint(folder: Path | str, out: Path | str) -> Run[Model]:
    """A transformers directory as a run on disk: config.json, model.safetensors, and tokenizer.json if it has one."""
    folder = Path(folder)
    described = _described(folder)
    if "format_version" in described:
        raise BadFile(f"{folder} is a run already; `regard export` makes a transformers directory of it")
    run = load_run(folder, described)
    save(run, out)
    return run


def export_run(run: Run[Any], out: Path | str) -> None:
    """A run as a directory that transformers reads."""
    body = run.model.body if isinstance(run.model, Classifier) else run.model
    tokenizers = run.processor.pair
    if isinstance(body, Longformer) and tokenizers is not None and not isinstance(tokenizers.source, HFTokenizer):
        raise NotSupported(
            f"transformers' Longformer takes token 1 for padding, and in the vocabulary of {run.folder} it begins every text, so positions "
            "would differ; export a Longformer with a vocabulary of its own kind, as imported ones have"
        )
    export(run.model, out, run.processor.labels)
    for option, problem in PROBLEMS.items():
        if run.config.options.get(option):
            path = Path(out) / "config.json"
            described = json.loads(path.read_text(encoding="utf-8")) | {"problem_type": problem}
            path.write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if tokenizers is not None and tokenizers.joint:
        borrowed = HFTokenizer.from_tokenizer(tokenizers.source, framed=isinstance(body, TextEncoder))
        if borrowed is not None:
            borrowed.save_pretrained(Path(out), kinds=isinstance(body, Encoder) and body.config.segments > 1)


def export(model: Model, out: Path | str, labels: Sequence[str] = ()) -> None:
    """config.json and model.safetensors as transformers writes them; `labels` are the names of what a fine-tuned model tells apart."""
    out, body = Path(out), model.body if isinstance(model, Classifier) else model
    families = [family for family in FAMILIES if family.model == body.facts.name]
    if not families:
        known = ", ".join(family.model for family in FAMILIES)
        raise NotSupported(f"transformers has no model that a {body.facts.name} of ours could be written as; those that can be: {known}")
    for path, spec in body.config.attention_overrides:
        if not isinstance(Spec.read(spec).pattern, Full):
            raise NotSupported(
                f"{path} attends by {spec}; files of transformers hold no patterns: export model.with_attention(pattern=full)"
            )
    config, tensors = families[0].export(body)
    if isinstance(model, Classifier):
        config, tensors = export_classifier(model, labels, config, tensors)
    if (out / "config.json").exists():
        raise RunExists(f"{out} holds a model already; choose another place")
    out.mkdir(parents=True, exist_ok=True)
    _save(tensors, out / WEIGHTS)
    (out / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _checkpoint(folder: Path, described: Mapping[str, Any]) -> Model:
    family = _family(folder, described)
    with ExitStack() as opened:
        tensors, label_head = _Tensors(_files(folder), opened), LabelHead.from_config(described)
        head = tensors.head(label_head, folder) if label_head else {}
        settings = family.to_settings(HFConfig(described, tensors))
        model = build(family.model, settings)
        _fill(model, family, tensors, settings, folder)
        if label_head:
            model = Classifier(model, len(label_head.labels), each=label_head.per_token)
            load_parameters(model.output, head, str(folder))
    return model.eval()


def _fill(model: Model, family: Family, tensors: _Tensors, settings: Mapping[str, Any], folder: Path) -> None:
    found: dict[str, Tensor] = {}
    missing, sizes = list[str](), list[str]()
    try:
        found = family.parameters(tensors, settings)
    except Misfit as wrong:
        missing, sizes = wrong.missing, wrong.sizes
    except KeyError as wrong:
        missing = [str(wrong.args[0])]
    unknown = [name for name in tensors if name not in tensors.requested and not any(re.search(rule, name) for rule in family.ignored)]
    if found:
        missing, ours, sizes = compare_parameters(model, found)
        unknown += ours
    if missing or unknown or sizes:
        raise Misfit(f"{folder} is no {model.facts.name} as its config.json describes it", missing, unknown, sizes)
    load_parameters(model, found, str(folder))


class _Tensors(Mapping[str, Tensor]):
    """The tensors of some files, read on demand; `requested` are the names read so far."""

    def __init__(self, files: Mapping[Path, list[str] | None], opened: ExitStack):
        self.requested: set[str] = set()
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

    def head(self, label_head: LabelHead, folder: Path) -> dict[str, Tensor]:
        """The output layer of a fine-tuned model. The rest is then as if it had not been fine-tuned."""
        try:
            found = {kind: self[f"{label_head.head.output}.{kind}"] for kind in ("weight", "bias")}
        except KeyError as wrong:
            raise Misfit(f"{folder} is no {label_head.head.architecture}", [str(wrong.args[0])]) from wrong
        if len(found["weight"]) != len(label_head.labels):
            raise Misfit(f"{folder} has {len(label_head.labels)} labels and scores for {len(found['weight'])}")
        for kind in ("weight", "bias"):
            del self.where[f"{label_head.head.output}.{kind}"]
            if label_head.head.pooler and f"{label_head.head.pooler}.{kind}" in self.where:
                self.where[f"{label_head.base_pooler}.{kind}"] = self.where.pop(f"{label_head.head.pooler}.{kind}")
        return found

    def __getitem__(self, name: str) -> Tensor:
        file, stored = self.where[name]
        self.requested.add(name)
        tensor: Tensor = file.get_tensor(stored)
        if not tensor.dtype.is_floating_point or tensor.element_size() < 2:
            raise BadFile(f"{name} is {tensor.dtype}: quantized tensors are not read; save it in float32, float16 or bfloat16")
        return tensor.float()

    def __contains__(self, name: object) -> bool:
        if name not in self.where:
            return False
        self.requested.add(str(name))
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.where)

    def __len__(self) -> int:
        return len(self.where)


def _described(folder: Path) -> dict[str, Any]:
    """config.json; a directory or a file of pickles is refused by name."""
    if folder.is_file():
        _refuse_pickles([folder])
    try:
        return read_json(folder)
    except MissingFile:
        if folder.is_dir():
            _refuse_pickles(folder.iterdir())
        raise


def _family(folder: Path, described: Mapping[str, Any]) -> Family:
    kind = described["model_type"]
    for family in FAMILIES:
        if kind in family.model_types:
            return family
    known = [name for each in FAMILIES for name in each.model_types]
    raise UnknownName(f"family of models ({folder / 'config.json'}: model_type)", str(kind), known)


class _Index(msgspec.Struct):
    weight_map: dict[str, str]  # tensor → file


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """The files of weights, and of sharded ones which names each holds."""
    if (folder / WEIGHTS).exists():
        return {folder / WEIGHTS: None}
    index = folder / INDEX
    if not index.exists():
        _refuse_pickles(folder.iterdir())
        raise MissingFile(f"{folder} holds neither {WEIGHTS} nor {INDEX}")
    try:
        placed = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadFile(f"{index}: not an index of safetensors: {wrong}") from wrong
    for name, file in placed.items():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise BadFile(f"{index}: {name} is listed in {file!r}; expected a file of safetensors beside the index")
    return {folder / file: [name for name, other in placed.items() if other == file] for file in dict.fromkeys(placed.values())}


def _refuse_pickles(paths: Any) -> None:
    found = sorted(path.name for path in paths if path.suffix.lower() in PICKLED)
    if found:
        raise BadFile(
            f"{found[0]} is not read: a pickled checkpoint is a program, and reading it runs it. If you trust it, convert it to safetensors: "
            'transformers.AutoModel.from_pretrained("DIR").save_pretrained("OUT")'
        )


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: x.detach().contiguous().clone() for name, x in tensors.items()}, path, metadata={"format": "pt"})
    except (OSError, SafetensorError) as wrong:
        raise CannotSave(f"{path}: {wrong}") from wrong
