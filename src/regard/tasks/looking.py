"""Where the model of a run looks while it reads a text, or while it writes a translation: maps of every layer, with tokens for labels."""

from __future__ import annotations

import torch

from ..data import BOS, EOS
from ..data.frames import Frame
from ..decode import Beam
from ..decode.complete import Text
from ..errors import NotSupported, ShapeError
from ..look import Maps, capture
from ..look.capture import Choice, Chooser
from ..look.maps import Map
from ..models import Labeller, LanguageModel, Model, TextEncoder, Translator
from .run import Run
from .translation import END, GREEDY, translations


@torch.no_grad()
def looked(run: Run[Model], text: str, layers: Chooser = None, heads: Choice = None) -> Maps:
    """The maps of a language model, an encoder or a classifier that reads this text as it did in training; a tab divides a pair."""
    model = run.model.body if isinstance(run.model, Labeller) else run.model
    if not isinstance(model, LanguageModel | TextEncoder):
        raise NotSupported(f"{run.folder}: a {model.facts.name} reads no single text; `translation_looked` is for translators")
    kind: list[int] = []
    if isinstance(model, LanguageModel) and not isinstance(run.model, Labeller):
        ids, _ = Text(run.tokenizer, model.config.vocab).ids(text)
    else:
        frame = Frame.of(run.tokenizer)
        parts = [[*ids, frame.end] for ids in run.tokenizer.encode_all(text.split("\t"))]
        ids = [frame.begin, *(i for part in parts for i in part)]
        kind = [0] + [int(number > 0) for number, part in enumerate(parts) for _ in part]
    if not 1 <= len(ids) <= model.config.length:
        raise ShapeError(f"a text of {len(ids)} tokens, and this model reads 1 to {model.config.length}; take another one")
    given = torch.tensor([ids])
    with capture(model, layers, heads, tokens=run.tokenizer.strings(ids)) as maps:
        if isinstance(model, LanguageModel):
            model.features(given)
        else:
            model.features(given, kind_BL=torch.tensor([kind]))
    return maps


@torch.no_grad()
def translation_looked(
    run: Run[Translator], sentence: str, options: Beam = GREEDY, layers: Chooser = None, heads: Choice = None
) -> tuple[str, Maps]:
    """The translation of a sentence, and the maps of all layers while it is read and written. A row is named after the token it led to."""
    ((text, answers),) = translations(run.model, run.tokenizers, [sentence], options)
    source, best = [*run.tokenizers.source.encode(sentence), EOS], answers[0].ids
    with capture(run.model, layers, heads) as maps:
        run.model.features(torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([[BOS, *best]]))
    read = [*run.tokenizers.source.strings(source[:-1]), END]
    target = run.tokenizers.target.strings([BOS, *best])
    own = run.model.attentions()

    def named(m: Map) -> Map:
        here = m.layer.rpartition(".")[0]
        written = [*target[1:], END]
        queries, keys = (written, read) if here not in own else (written, target) if here.startswith(run.model.writes) else (read, read)
        return m.label(queries if m.queries == len(queries) else None, keys if m.keys == len(keys) else None)

    return text, Maps(map(named, maps.all), maps.idle)
