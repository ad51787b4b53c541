"""Maps of all layers of a translator while a given translation is read as the target."""

from __future__ import annotations

import torch
from torch import Tensor

from ..decode import DecoderTokens, Hypothesis
from ..look import Indices, Layers, Maps, capture
from ..look.gradients import InputGradients
from ..models import Translator, device_of
from ..runs import Run
from .seq2seq import label_layer


@torch.no_grad()
def forced_maps(run: Run[Translator], sentence: str, answer: Hypothesis, layers: Layers = "*", heads: Indices = None) -> Maps:
    """Maps of all layers while this translation is read as the target. A row is named after the token it predicts."""
    tokenizers, model, device = run.processor.tokenizers, run.model, device_of(run.model)
    special, ids = DecoderTokens.of(tokenizers.target), answer.ids
    source = [*tokenizers.source.encode(sentence), special.end]
    source_BM, target_BL = (torch.tensor([one], device=device) for one in (source, [special.first, *ids]))
    source_n_B = torch.tensor([len(source)], device=device)

    def features(model: Translator) -> Tensor:
        return model.features(source_BM, source_n_B, target_BL)[0]

    with capture(model, layers, heads) as maps:
        features(model)
    read_labels = tokenizers.source.strings(source)
    target_labels = tokenizers.target.strings([special.first, *ids])
    written_labels = tokenizers.target.strings([*ids, special.end])
    own, paths = model.attentions(), {layer: layer.rpartition(".")[0] for layer in maps.layers}
    # of the layers whose queries write the target: their keys are the source, 0, or the target so far, 1
    inputs = {layer: int(path in own) for layer, path in paths.items() if path not in own or path.startswith(model.causal_parts)}
    # a view per layer: a recurrent decoder attends once per step
    labelled = [label_layer(model, maps.view(layer), read_labels, target_labels, written_labels) for layer in maps.layers]
    gradients = InputGradients(
        model, (source_BM, target_BL), features, torch.tensor([*ids, special.end], device=device), written_labels, inputs
    )
    return Maps(labelled, maps.idle, answer=tokenizers.target.decode(ids), score=answer.score, gradients=gradients)
