"""A small transformer learns to continue what it has seen before; then we look at how it does it.

The task: letters in random order, then the same letters again, e.g. `KQBX…KQBX…`. To continue after the second B one has to
find the first B and read on. Two layers of attention suffice (an *induction head*: Olsson et al. 2022, arXiv:2209.11895):
the first tells every letter which one came before it, the second looks for the letter that came after the present one.

Here the first layer may look one step back only, by its pattern, and no positions are given. What the second layer looks at
is left to training.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import SoftmaxAttention
from .layers import Block, MultiHead
from .look import capture
from .patterns import causal, window

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
HALF = 10  # letters before the repetition
PREVIOUS = causal & window(1) & ~window(0)  # exactly the letter before; the first letter sees nothing
SOLVED = 0.99


class Reader(nn.Module):
    """Two layers of attention between an embedding and its transpose."""

    def __init__(self, width: int = 64, heads: int = 2):
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), width)
        self.back = Block(width, MultiHead(width, heads, SoftmaxAttention()), None)
        self.recall = Block(width, MultiHead(width, heads, SoftmaxAttention()), None)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, len(LETTERS))

    def forward(self, ids_BL: Tensor) -> Tensor:
        x_BLD = self.letters(ids_BL)
        x_BLD = self.recall(self.back(x_BLD, PREVIOUS), causal)
        logits_BLN: Tensor = self.out(self.norm(x_BLD))
        return logits_BLN


def batch(size: int, generator: torch.Generator) -> Tensor:
    """ids_BL: HALF different letters, twice over."""
    order = torch.rand(size, len(LETTERS), generator=generator).argsort(-1)[:, :HALF]
    return torch.cat([order, order], -1)


def loss_and_accuracy(model: nn.Module, ids_BL: Tensor) -> tuple[Tensor, float]:
    """Over the second half: all of its letters but the first follow from what was seen."""
    logits_BLN, next_BL = model(ids_BL[:, :-1])[:, HALF:], ids_BL[:, HALF + 1 :]
    return F.cross_entropy(logits_BLN.flatten(0, 1), next_BL.flatten()), (logits_BLN.argmax(-1) == next_BL).float().mean().item()


def train(model: nn.Module, seconds: float, generator: torch.Generator, most: int = 5_000) -> tuple[int, float]:
    """Until it is solved or the time is over: the steps taken, and the accuracy on sequences never trained on."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    unseen_BL, end, step = batch(256, generator), time.monotonic() + seconds, 0
    while True:
        with torch.no_grad():
            _, accuracy = loss_and_accuracy(model, unseen_BL)
        if accuracy >= SOLVED or step >= most or time.monotonic() > end:
            return step, accuracy
        for _ in range(25):
            loss, _ = loss_and_accuracy(model, batch(64, generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1


def look(model: nn.Module, ids_BL: Tensor, out: Path) -> tuple[str, float, Path]:
    """What the head that recalls best looks at, as lines of text; its mean weight on the right letter; and the picture."""
    words = [LETTERS[i] for i in ids_BL[0].tolist()]
    with torch.no_grad(), capture(model) as maps:
        model(ids_BL)
    maps = maps.label(words, words)
    layer = maps.layers[-1]
    weights_HLM = maps.view(layer).weights_BHLM[0].float()
    reads = range(HALF, 2 * HALF - 1)  # at each of these the letter to continue with stands HALF − 1 back
    right_H = torch.stack([weights_HLM[:, i, i - HALF + 1] for i in reads], -1).mean(-1)
    head = int(right_H.argmax())
    lines = []
    for i in reads:
        weight, j = weights_HLM[head, i].max(-1)
        told = f"after {words[i]}: looks at {words[int(j)]} (place {int(j) + 1:2})"
        lines.append(f"  {told}  {'█' * round(20 * weight.item()):<20} {weight.item():.2f}   right: {words[i + 1]}")
    return "\n".join(lines), right_H[head].item(), Path(maps.save_png(out / "attention.png", layer=layer, head=head))


def demo(out: Path = Path("demo"), *, seconds: float = 30.0, seed: int = 0) -> float:
    """Train, look, print; returns the accuracy reached."""
    out.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Reader()
    example_BL = batch(1, generator)
    text = "".join(LETTERS[i] for i in example_BL[0].tolist())
    print(f"The task: read {text[:HALF]}, then continue {text[HALF : HALF + 3]}… with {text[HALF + 3]}, for letters in any order.\n")
    print(f"The first layer may look at `{PREVIOUS}`:\n\n{PREVIOUS.draw(6)}\n")
    with torch.no_grad():
        before = loss_and_accuracy(model, batch(256, generator))[1]
    start = time.monotonic()
    steps, after = train(model, seconds, generator)
    print(f"Letters right: {before:.0%} before, {after:.0%} after {steps} steps ({time.monotonic() - start:.0f} s).")
    if after < SOLVED:
        print(f"Not solved: below {SOLVED:.0%} when the time was over. `regard demo --seconds 120` gives it longer.")
    told, weight, picture = look(model, example_BL, out)
    print(f"\nWhere its second layer looks while it continues {text[:HALF]}:\n\n{told}\n")
    print(f"On average {weight:.0%} of the weight is on the letter that came next. The whole picture: {picture}")
    print('\nNext:  regard list        regard show softmax        regard show "causal & (window(3) | tokens(0))"')
    return after
