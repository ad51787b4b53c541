"""Training steps of a language model, side by side: regard's GPT-2, a nanoGPT in plain PyTorch, transformers' GPT-2.

Run:  python -m benchmarks.language [--compiled] [--repeats R]      writes the section `language` of RESULTS.md.
6 layers, width 384, 6 heads, 256 tokens a row, 12 rows, no dropout, AdamW, float32; once with 65 characters and once with 50,257 words.
All begin with the same weights and see the same batches; 20 steps of each are compared before anything is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.kernels import smoothed_cross_entropy
from regard.models import GPT2, build
from regard.train import AdamW

from ._measure import machine, side_by_side, write

DEPTH, D, H, L, ROWS, RATE, STEPS = 6, 384, 6, 256, 12, 3e-4, 20
Loss = Callable[[Tensor, Tensor], Tensor]


class PlainBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.c_attn, self.attn_proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.c_fc, self.mlp_proj = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (part.view(B, T, H, C // H).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(C, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous().view(B, T, C)
        x = x + self.attn_proj(y)
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))


class Plain(nn.Module):
    """nanoGPT's model: fused q, k, v, PyTorch's attention, GELU by erf (faster than by tanh here), tied output, all logits."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, D), nn.Embedding(L, D)
        self.h, self.ln_f = nn.ModuleList(PlainBlock() for _ in range(DEPTH)), nn.LayerNorm(D)

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.flatten())


def regard_loss(model: GPT2) -> Loss:
    def loss(ids: Tensor, target: Tensor) -> Tensor:
        total, _ = smoothed_cross_entropy(model.features(ids).flatten(0, 1), *model.head(), target.flatten())
        return total / target.numel()

    return loss


def plain(model: GPT2, vocab: int) -> Plain:
    """The same weights in nanoGPT's places."""
    made, own = Plain(vocab), model.state_dict()
    names = {
        "wte.weight": "embedding.token.weight",
        "wpe.weight": "embedding.position.table.weight",
        "ln_f.weight": "norm.weight",
        "ln_f.bias": "norm.bias",
    }
    parts = {
        "ln_1": "around_mixer.before", "ln_2": "around_feedforward.before", "c_attn": "mixer.qkv", "attn_proj": "mixer.out",
        "c_fc": "feedforward.up", "mlp_proj": "feedforward.down",
    }  # fmt: skip
    for i in range(DEPTH):
        names |= {f"h.{i}.{one}.{kind}": f"blocks.{i}.{other}.{kind}" for one, other in parts.items() for kind in ("weight", "bias")}
    made.load_state_dict({one: own[other] for one, other in names.items()})
    return made


def transformers_loss(model: GPT2) -> tuple[nn.Module, Loss]:
    from transformers import GPT2Config, GPT2LMHeadModel

    from regard.interop import _gpt2

    described, tensors = _gpt2.exported(model)
    quiet = {
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "sdpa",
    }
    made = GPT2LMHeadModel(GPT2Config(**{k: v for k, v in described.items() if k not in ("model_type", "architectures")} | quiet))
    made.load_state_dict({name: x.clone() for name, x in tensors.items()}, strict=False)
    made.tie_weights()

    def loss(ids: Tensor, target: Tensor) -> Tensor:
        logits = made(input_ids=ids).logits
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.flatten())

    return made, loss


def stepper(model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Callable[[], float]:
    model.train()
    turn = iter(range(1 << 30))

    def step() -> float:
        ids = batches[next(turn) % len(batches)]
        said = loss(ids[:, :-1], ids[:, 1:])
        said.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(said.detach())

    return step


def contestants(vocab: int, compiled: bool) -> dict[str, Callable[[], float]]:
    torch.manual_seed(0)
    ours = build("gpt2", {"vocab": vocab, "length": L, "width": D, "heads": H, "depth": DEPTH, "dropout": 0.0})
    assert isinstance(ours, GPT2)
    nano, (theirs, their_loss) = plain(ours, vocab), transformers_loss(ours)
    often = 1 / (torch.arange(vocab) + 3.0)  # some words are frequent, as in text: so there is something to learn
    batches = list(torch.multinomial(often, STEPS * ROWS * (1 + L), replacement=True).view(STEPS, ROWS, 1 + L))
    losses: dict[str, tuple[nn.Module, Loss]] = {
        "regard": (ours, regard_loss(ours)),
        "nanoGPT in plain PyTorch": (nano, nano),
        "transformers GPT-2": (theirs, their_loss),
    }
    made = {}
    for name, (model, loss) in losses.items():
        run = torch.compile(loss) if compiled else loss
        config = AdamW(betas=(0.9, 0.95), weight_decay=0.1)
        fused = config.build(model) if name == "regard" else _as_published(model, config)
        for group in fused.param_groups:
            group["lr"] = RATE
        made[name] = stepper(model, run, fused, batches)
    return made


def _as_published(model: nn.Module, config: AdamW) -> torch.optim.Optimizer:
    """nanoGPT takes the fused optimiser on GPUs only, and transformers' trainer the plain one; decay as ours."""
    learning = list(model.parameters())
    groups = [
        {"params": [p for p in learning if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in learning if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=config.betas, eps=config.eps)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiled", action="store_true", help="torch.compile for all three")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    rows = []
    for vocab in (65, 50_257):
        made = contestants(vocab, given.compiled)
        curves = {name: [step() for _ in range(STEPS)] for name, step in made.items()}
        apart = max(abs(a - b) for name in curves for a, b in zip(curves[name], curves["regard"], strict=True))
        assert apart < 2e-3, f"loss curves differ by {apart}"
        timed = side_by_side(made, repeats=given.repeats)
        for name, timing in timed.items():
            bar = {"nanoGPT in plain PyTorch": "≥ 1.2×", "transformers GPT-2": "≥ 1.5×"}.get(name, "")
            ratio = timing.median / timed["regard"].median
            speed = f"{ROWS * L / timing.median:,.0f} ±{timing.spread * 50:.0f} %"
            first, last = curves[name][0], curves[name][-1]
            rows.append(f"| {vocab:,} | {name} | {speed} | {f'**{ratio:.2f}×**' if bar else ''} | {bar} | {first:.4f} → {last:.4f} |")
    how = "compiled" if given.compiled else "eager"
    head = [f"## Training a language model, {how}", "", f"{(__doc__ or '').splitlines()[3]} {machine()}.", ""]
    table = ["| vocabulary | | tokens a second | regard is faster | bar | loss over 20 steps |", "|---|---|---|---|---|---|"]
    write("language" if not given.compiled else "language compiled", [*head, *table, *rows])


if __name__ == "__main__":
    main()
