"""Images drawn from texts by DALL·E, and how well CLIP says that they fit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data.images import Pixels
from ..models import CLIP, DALLE, device_of, eval_mode
from ..models.dalle import PADDING
from ..runs import Run
from .clip import image_vectors, text_vectors
from .image_text import ImageTextProcessor


def text_ids(processor: ImageTextProcessor, texts: Sequence[str], longest: int) -> Tensor:
    """Padded ids of texts."""
    ids = [processor.ids(text, longest) for text in texts]
    length = max(map(len, ids))
    return torch.tensor([one + [PADDING] * (length - len(one)) for one in ids])


@torch.no_grad()
def draw(
    model: DALLE, processor: ImageTextProcessor, texts: Sequence[str], temperature: float = 1.0, seed: int = 0, batch_size: int = 64
) -> list[Pixels]:
    """An image per text; the same seed, the same images."""
    generator, found = torch.Generator().manual_seed(seed), list[Pixels]()
    with eval_mode(model):
        for at in range(0, len(texts), batch_size):
            text_BT = text_ids(processor, texts[at : at + batch_size], model.config.max_length).to(device_of(model))
            codes_BM = model.sample(text_BT, temperature=temperature, generator=generator)
            found += [processor.image.decode(x_CHW) for x_CHW in model.vae.draw(codes_BM).cpu()]
    return found


def ranks(judge: Run[CLIP], text: str, images: Sequence[Pixels]) -> list[float]:
    """The cosine of each image with the text."""
    i_BE, t_1E = image_vectors(judge.model, judge.processor, images), text_vectors(judge.model, judge.processor, [text])
    found: list[float] = (i_BE @ t_1E.T)[:, 0].tolist()
    return found
