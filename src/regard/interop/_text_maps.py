"""Attention maps of a transformers directory whose family is not imported: transformers runs the model, capture observes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from .._extras import extra
from ..data import HFTokenizer
from ..errors import BadFile, CaptureNotSupported, Misfit, MissingFile, NotSupported, RegardError, ShapeError
from ..look import Indices, Layers, Map, Maps, capture
from ..machine import find_device
from ..train import to_device
from .families import families

LONGEST = 128  # tokens that an encoder-decoder generates


def is_imported(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is that of a run, or of a family that regard imports.

    Args:
        config: content of a config.json.
    """
    return "format_version" in config or any(config.get("model_type") in family.model_types for family in families().values())


@torch.no_grad()
def text_maps(folder: Path | str, text: str, layers: Layers = None, heads: Indices = None, device: str = "cpu") -> tuple[str, Maps]:
    """The output of an encoder-decoder, else nothing, and its maps while it reads this text; a tab separates a pair.

    Args:
        folder: transformers directory.
        text: text to read; a tab separates a pair.
        layers: layers to capture, as in `capture`.
        heads: heads to capture, as in `capture`.
        device: device of the model: auto, cpu, cuda, cuda:1, mps.
    """
    folder = Path(folder)
    tokenizer = HFTokenizer.from_directory(folder)
    if tokenizer is None:
        raise MissingFile(f"{folder} has no tokenizer.json; transformers writes it with tokenizer.save_pretrained")
    ids, segment = tokenizer.encode_pair(*text.split("\t", 1))
    with _quiet(folder) as transformers:
        model = _load(folder, transformers).to(find_device(device))
        inputs = to_device(_inputs(model, ids, segment, folder), model.device)
        generates = model.config.is_encoder_decoder and model.can_generate()
        try:
            with capture(model, layers, heads) as maps:
                if generates:
                    written = model.generate(**inputs, max_new_tokens=LONGEST, do_sample=False, num_beams=1)[0].tolist()
                else:
                    getattr(model, "get_text_features", model)(**inputs)
        except RegardError:
            raise
        except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError) as wrong:
            raise NotSupported(f"{folder}: {type(model).__name__} does not run on a text alone: {_one_line(wrong)}") from wrong
    if not maps.all:
        raise CaptureNotSupported(f"{folder}: no chosen layer of {type(model).__name__} ran on this text")
    words = tokenizer.strings(ids)
    if generates:
        return tokenizer.decode(written), Maps(_label(maps, name, words, tokenizer.strings(written)) for name in maps.layers)
    return "", Maps(m.label(words if m.queries == len(words) else None, words if m.keys == len(words) else None) for m in maps.all)


def _label(maps: Maps, layer: str, read: list[str], written: list[str]) -> Map:
    """All steps of a layer. A row is named after the token that is written next."""
    joined = maps.view(layer)
    if joined.stream is None:
        return joined.label(read, read)
    crosses = any(m.keys != m.queries for m in maps[layer])
    return joined.label(written[1:], read if crosses else written[:-1])


def _inputs(model: Any, ids: list[int], segment: list[int], folder: Path) -> dict[str, torch.Tensor]:
    if model.main_input_name != "input_ids":
        raise NotSupported(f"{folder}: {type(model).__name__} takes {model.main_input_name}, not text")
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or len(ids)
    if not 1 <= len(ids) <= longest:
        raise ShapeError(f"the text has {len(ids)} tokens, and this model reads 1 to {longest}; shorten it")
    inputs = {"input_ids": torch.tensor([ids])}
    if model.can_generate():
        inputs["attention_mask"] = torch.ones(1, len(ids), dtype=torch.long)
    if any(segment):
        inputs["token_type_ids"] = torch.tensor([segment])
    return inputs


def _load(folder: Path, transformers: Any) -> Any:
    """The model that config.json names, in float32; only from safetensors, and without code from the directory or the network."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as wrong:
        raise BadFile(f"{folder}: transformers cannot read config.json: {_one_line(wrong)}") from wrong
    named = getattr(transformers, (getattr(config, "architectures", None) or ["AutoModel"])[0], None)
    known = isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)
    kind: Any = named if known else transformers.AutoModel
    options = {"local_files_only": True, "use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    for backend in ("sdpa", "eager"):  # named, because config.json could name one that is downloaded
        try:
            model, report = kind.from_pretrained(folder, config=config, attn_implementation=backend, **options)
            break
        except (ImportError, OSError, RuntimeError, ValueError) as wrong:
            if backend == "eager":
                raise BadFile(f"{folder}: transformers cannot load {kind.__name__}: {_one_line(wrong)}") from wrong
    if report["missing_keys"] or report["mismatched_keys"]:
        sizes = [str(name) for name in report["mismatched_keys"]]
        raise Misfit(f"{folder} is not the {kind.__name__} that its config.json describes", sorted(report["missing_keys"]), [], sizes)
    return model.eval()


@contextmanager
def _quiet(folder: Path) -> Iterator[Any]:
    """transformers, without its notices and progress bars."""
    with extra("interop"):  # models of this family are run by transformers itself
        transformers = import_module("transformers")
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
