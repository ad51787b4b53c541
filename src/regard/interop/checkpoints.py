"""Published checkpoints in and out: a directory with config.json and safetensors becomes a model here, and back.

    run = load_run("path/to/bert")                            a run in memory; regard.load_run takes runs, too
    import_checkpoint("path/to/bert", "runs/bert")            a run on disk, to train, inspect and serve
    export(run, "out")                                        a directory that transformers' from_pretrained reads; or export(model, …)

Only JSON and safetensors are read. Pickled weights (pytorch_model.bin, .pt, .ckpt) are refused: reading one runs whatever code its
author, or whoever changed it since, put in.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..data import BOS
from ..errors import BadFile, DiffersWarning, Misfit, MissingFile, NotSupported, RunExists
from ..files import cannot, check_name, check_regular, make_readable, new_folder, write_json
from ..layers.spec import Spec
from ..machine import find_device
from ..models import Classifier, Headed, LanguageModel, Model, TextEncoder, Translator, body_of, build
from ..patterns import Full
from ..run_config import RunConfig
from ..runs import Run, read_json, save
from ..tasks import make_run, task_for
from ..train.parameters import compare_parameters, load_parameters
from ._classifiers import LabelHead, export_head
from ._defaults import DEFAULTS
from ._generation import FILE as GENERATION
from ._generation import IDS
from .families import UNSUPPORTED, families
from .family import Family
from .hf_config import HFConfig, label_config
from .names import BaseNames, NamedTensors, from_hf

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LARGEST = 2**31
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack", ".ot")


def load_run(folder: Path | str, described: Mapping[str, Any] | None = None, device: str = "cpu") -> Run[Model]:
    """A transformers directory as a run in memory, of the task that its model is for; parameters in float32, ready to use.

    Args:
        folder: transformers directory.
        described: content of its config.json, if that has been read.
        device: device of the model: auto, cpu, cuda, cuda:1, mps.
    """
    folder, place = Path(folder), find_device(device)
    described = _described(folder) if described is None else described
    family = _family(folder, described)
    model = _checkpoint(folder, described, family)
    if difference := family.difference(vars(body_of(model).config)):
        warnings.warn(f"{folder} ({family.model_types[0]}) can differ from transformers: {difference}", DiffersWarning, stacklevel=3)
    processor = family.files.read(folder, described, model)
    return make_run(task_for(type(model), isinstance(model, Classifier) and model.each), model.to(place), processor, folder=folder)


def import_checkpoint(folder: Path | str, out: Path | str) -> Run[Model]:
    """A transformers directory as a run on disk: config.json, model.safetensors, and tokenizer.json if it has one.

    Args:
        folder: transformers directory.
        out: run directory to write.
    """
    folder = Path(folder)
    described = _described(folder)
    if "format_version" in described:
        raise BadFile(f"{folder} is a run already; `regard export` makes a transformers directory of it")
    run = load_run(folder, described)
    save(run, out)
    return run


def export(source: Run[Any] | Model, out: Path | str, labels: Sequence[str] = ()) -> None:
    """A run, or a model, as a directory that transformers reads: whole or not at all.

    A model that is from a run carries the run's tokenizers, special tokens and labels, so both give the same files. A model that was built
    here has its parameters and config.json only.

    Args:
        source: run or model to export.
        out: directory to write.
        labels: names of the classes of a fine-tuned model; those of its run if not given.
    """
    run = source if isinstance(source, Run) else Run(Path(), RunConfig(task="", options=dict(source.options)), source, source.processor)
    check_name(out)
    files, folder = _exported_as(run.model).files, Path(out)
    if (folder / "config.json").exists():
        raise RunExists(f"{out} already holds a model; choose another folder")
    named, generation = files.facts(run) if run.processor is not None else ((), {})
    config, tensors = _to_hf(run.model, labels or named, generation)
    try:
        with new_folder(folder, last="config.json") as draft:
            _save(tensors, draft / WEIGHTS)
            if generation and isinstance(run.model, LanguageModel | Translator):
                write_json(draft / GENERATION, generation, indent=2)
            write_json(draft / "config.json", config, indent=2)
            if run.processor is not None:
                files.write(run, draft)
    except OSError as wrong:
        raise cannot(folder, wrong) from wrong


def _to_hf(model: Model, labels: Sequence[str], generation: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and the tensors of transformers."""
    family, body = _exported_as(model), body_of(model)
    for path, spec in body.config.attention_overrides:
        if not isinstance(Spec.read(spec).pattern, Full):
            raise NotSupported(
                f"{path} attends by {spec}; transformers checkpoints cannot hold patterns: export model.with_attention(pattern=full)"
            )
    config, tensors = family.export(body)
    if isinstance(body, LanguageModel | TextEncoder | Translator):
        start = {"decoder_start_token_id": BOS, "forced_eos_token_id": None} if isinstance(body, Translator) else {}  # it must have one
        config = (
            dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
            | start
            | {key: generation[key] for key in IDS if key in generation}
            | config
        )
    elif config["architectures"][0] in family.own_heads:
        config |= label_config(labels or [f"LABEL_{n}" for n in range(body.output.out_features)])
    if isinstance(model, Headed):
        config, tensors = export_head(model, labels, config, tensors)
    return config, tensors


def _exported_as(model: Model) -> Family:
    """The family that one of our models is written as."""
    body = body_of(model)
    fitting = [family for family in families().values() if family.model == body.facts.name and family.fits(body)]
    if not fitting:
        known = ", ".join(dict.fromkeys(family.model for family in families().values()))
        raise NotSupported(
            f"transformers has no counterpart of this {body.facts.name} with its settings; models that can be exported: {known}"
        )
    return fitting[0]


def _checkpoint(folder: Path, described: Mapping[str, Any], family: Family) -> Model:
    with ExitStack() as opened:
        tensors, label_head = _Tensors(_files(folder), opened), LabelHead.from_config(described)
        head = tensors.head(label_head, folder) if label_head else {}
        settings = family.to_settings(HFConfig(described, tensors, tensors.shapes()))
        _check_fit(family, tensors, settings, folder)
        model = build(family.model, settings)
        load_parameters(model, from_hf(BaseNames(tensors, family.prefix), family.table(vars(model.config))), str(folder))
        if label_head:
            model = label_head.add_to(model)
            load_parameters(model.output, head, str(folder))
    return model.eval()


def _check_fit(family: Family, tensors: _Tensors, settings: Mapping[str, Any], folder: Path) -> None:
    """Compare the sizes that config.json describes with those of the files, before any memory is taken for them."""
    values = [each for value in settings.values() for each in (value if isinstance(value, list | tuple) else [value])]
    if any(isinstance(value, int) and value > LARGEST for value in values):
        raise BadFile(f"{folder} describes sizes above {LARGEST}, which no model has")
    layers, depth = settings.get("layers", ()), settings.get("depth", 0)  # kinds of layers, or their number per stack
    counts = [len(layers) if isinstance(layers, list | tuple) else 0, *(depth if isinstance(depth, list | tuple) else [depth])]
    counts.append(settings.get("image_depth", 0))
    for count in counts:
        if isinstance(count, int) and count > len(tensors):
            raise Misfit(f"{folder} describes {count} layers, and has {len(tensors)} tensors: {len(tensors)} layers at most")
    try:
        with torch.device("meta"):
            empty = build(family.model, settings)
    except RuntimeError as wrong:  # more bytes than a number can count
        raise BadFile(f"{folder} describes a model that is too large for any memory: {wrong}") from wrong
    described = vars(empty.config)
    names, shapes = BaseNames(tensors, family.prefix), BaseNames(tensors.shapes(), family.prefix)
    found, sizes = dict[str, Tensor](), list[str]()
    missing = [name for entry in family.table(described) for name in entry.hf_names if name not in names]
    unknown = [names.where[name] for name in family.check_others(BaseNames(tensors.values_as_stored(), family.prefix), described)]
    for entry in family.table(described):
        if all(name in names for name in entry.hf_names):
            try:
                found[entry.name] = entry.from_hf(shapes)
            except Misfit as wrong:
                sizes += wrong.sizes
    lacking, ours, other = compare_parameters(empty, found)
    covered = {entry.name for entry in family.table(described)}
    missing += [name for name in lacking if name not in covered]
    if missing or unknown or ours or sizes or other:
        raise Misfit(f"{folder} is not the {empty.facts.name} that its config.json describes", missing, unknown + ours, sizes + other)


class _Tensors(NamedTensors):
    """The tensors of some files in float32, read on demand."""

    def __init__(self, files: Mapping[Path, list[str] | None], opened: ExitStack):
        self.where: dict[str, tuple[Any, str]] = {}  # the file, and what it is called there
        for path, expected in files.items():
            try:
                check_regular(path)
                file = opened.enter_context(safe_open(path, framework="pt"))
            except MissingFile as wrong:
                raise MissingFile(f"{path}: no such file, and {INDEX} names it") from wrong
            except SafetensorError as wrong:
                raise BadFile(f"{path}: not a safetensors file: {wrong}") from wrong
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
            raise Misfit(f"{folder} is not a {label_head.head.architecture}", [str(wrong.args[0])]) from wrong
        if len(found["weight"]) != len(label_head.labels):
            raise Misfit(f"{folder} has {len(label_head.labels)} labels and scores for {len(found['weight'])}")
        for kind in ("weight", "bias"):
            del self.where[f"{label_head.head.output}.{kind}"]
            if label_head.head.pooler and f"{label_head.head.pooler}.{kind}" in self.where:
                self.where[f"{label_head.base_pooler}.{kind}"] = self.where.pop(f"{label_head.head.pooler}.{kind}")
        return found

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._stored(name)
        if not tensor.dtype.is_floating_point or tensor.element_size() < 2:
            raise BadFile(f"{name} is {tensor.dtype}: quantized tensors are not read; save it in float32, float16 or bfloat16")
        return tensor.float()

    def shapes(self) -> dict[str, Tensor]:
        """Tensors without values, of the shapes in the files."""
        return {name: torch.empty(file.get_slice(stored).get_shape(), device="meta") for name, (file, stored) in self.where.items()}

    def values_as_stored(self) -> Mapping[str, Tensor]:
        """Map names to tensors in the dtype that they have in the files."""
        return _AsStored(self)

    def _stored(self, name: str) -> Tensor:
        file, stored = self.where[name]
        tensor: Tensor = file.get_tensor(stored)
        return tensor


class _AsStored(_Tensors):
    def __init__(self, tensors: _Tensors):
        self.where = tensors.where

    def __getitem__(self, name: str) -> Tensor:
        return self._stored(name)


def _described(folder: Path) -> dict[str, Any]:
    """config.json; a directory or a file of pickles is refused by name."""
    if folder.is_file():
        _refuse_pickles([folder])
    if not folder.exists() and folder.parent != Path() and folder.parent.is_dir():  # not a name on the Hub, but one of this machine
        there = [path.name for path in folder.parent.iterdir() if (path / "config.json").is_file()]
        near = difflib.get_close_matches(folder.name, there, n=3, cutoff=0.4) or sorted(there)[:5]
        named = " or ".join(str(folder.parent / name) for name in near)
        raise MissingFile(f"{folder}: no such run; {f'did you mean {named}?' if named else f'{folder.parent} holds none'}")
    if not folder.exists() and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(folder)):
        raise MissingFile(
            f"{folder}: no such directory, so it is not a run; if it is a model of the Hugging Face Hub, download it first: hf download {folder} --local-dir {folder.name}"
        )
    try:
        return read_json(folder)
    except MissingFile:
        if folder.is_dir():
            _refuse_pickles(folder.iterdir())
        raise


def _family(folder: Path, described: Mapping[str, Any]) -> Family:
    kind = str(described["model_type"])
    for family in families().values():
        if kind in family.model_types:
            return family
    known = [name for each in families().values() for name in each.model_types]
    near = difflib.get_close_matches(kind, known, n=1, cutoff=0.75) if kind not in UNSUPPORTED | DEFAULTS.keys() else []
    hint = f"did you mean {near[0]!r}?" if near else f"supported are {', '.join(known)}"
    raise NotSupported(f"{folder / 'config.json'} has model_type={kind[:60]!r}, a family that is not supported; {hint}")


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
        raise BadFile(f"{index}: not a safetensors index: {wrong}") from wrong
    for name, file in placed.items():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise BadFile(f"{index}: {name} is listed in {file!r}; expected a safetensors file beside the index")
    return {folder / file: [name for name, other in placed.items() if other == file] for file in dict.fromkeys(placed.values())}


def _refuse_pickles(paths: Any) -> None:
    found = sorted(path.name for path in paths if path.suffix.lower() in PICKLED)
    if found:
        raise BadFile(
            f"{found[0]} is not read: a pickled checkpoint is a program, and reading it runs it. If you trust it, convert it to safetensors: "
            'transformers.AutoModel.from_pretrained("DIR").save_pretrained("OUT")'
        )


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    copies = {name: x.detach().contiguous().clone() for name, x in tensors.items()}
    try:
        make_readable(path, lambda path: save_file(copies, path, metadata={"format": "pt"}))
    except SafetensorError as wrong:
        raise cannot(path, wrong) from wrong
