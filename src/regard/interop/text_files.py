"""Tokenizers, labels of texts and generation_config.json in transformers' files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data import HFTokenizer, Tokenizers
from ..data.hf_tokenizer import Frame
from ..files import read_json, write_json
from ..models import Classifier, Model, TextEncoder, Translator, body_of
from ..models.encoder import Encoder
from ..runs import Run
from ..tasks import TextProcessor
from ..tasks.sentence_transformers import read_pooling, write_pooling
from ._generation import generation_of, read_generation, with_generation
from .hf_config import labels_of

PROBLEMS = {
    "multi_label": "multi_label_classification",
    "regression": "regression",
}  # options of `classify`, and what transformers calls them


class TextFiles:
    def read(self, folder: Path, described: Mapping[str, Any], model: Model) -> TextProcessor:
        borrowed, generation = HFTokenizer.from_directory(folder), read_generation(folder, described)
        pair = None if borrowed is None else Tokenizers(with_generation(borrowed, generation))
        labels = labels_of(described) if isinstance(model, Classifier) else ()
        return TextProcessor(pair, labels, str(folder), generation, read_pooling(folder))

    def facts(self, run: Run[Any]) -> tuple[Sequence[str], Mapping[str, Any]]:
        pair, generation = run.processor.pair, run.processor.generation
        if not generation and pair is not None and not isinstance(pair.target, HFTokenizer):
            generation = generation_of(_body(run), pair.target)
        return run.processor.labels, generation

    def write(self, run: Run[Any], out: Path) -> None:
        body, pair = _body(run), run.processor.pair
        for option, problem in PROBLEMS.items():
            if run.config.options.get(option):
                write_json(out / "config.json", read_json(out / "config.json") | {"problem_type": problem}, indent=2)
        write_pooling(run.processor.pooling, out)
        if pair is None:
            return
        frame: Frame = "both" if isinstance(body, TextEncoder) else "eos" if isinstance(body, Translator) else "bos"
        mask = isinstance(body, TextEncoder) and body.config.vocab_size > len(pair.source)
        source = HFTokenizer.from_tokenizer(pair.source, frame, mask)
        source.save_pretrained(out, kinds=isinstance(body, Encoder) and body.config.segments > 1)
        if not pair.joint:
            HFTokenizer.from_tokenizer(pair.target).save_pretrained(out / "target")


def _body(run: Run[Any]) -> Model:
    return body_of(run.model)


TEXT = TextFiles()
