"""The next token of a text, from all tokens before it or from a state that goes along: who gains more from a longer context?

Paper: Radford et al. 2018, "Improving language understanding by generative pre-training", sections 3.1 and 5 (there an LSTM in the place of
       the transformer loses 5.6 points of GLUE; by context: Kaplan et al. 2020, arXiv:2001.08361, figure 7).
Run:   regard run gpt2018        Takes: some ten minutes on two CPU cores; three seeds of three models.

CPython's documentation in characters, windows of 128, some 165,000 parameters each, equal steps of equal batches. Attention with the norm
before and rotary places, by Muon: learned places find their neighbours too slowly for so few steps (after 600 of them GPT-2's blocks
were behind the LSTM and behind the ablation). The LSTM with AdamW, which had the better of one and two layers and of rates from 0.005 to
0.02 on one seed, and so had more tries than attention. The ablation sees itself and one token before it in each of three layers: four
in all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..tasks import LanguageConfig
from ._base import Claim, Figures, Recipe, RecipeFacts
from ._language import Written, adam, training
from ._pictures import learning, lines, series

TEXT = LanguageConfig(tokens="characters", length=128, batch=8, shares=(0.1, 0.1), judged=5000)
SIZE: dict[str, Any] = {"width": 64, "heads": 4, "kv_heads": 4, "head_width": 16, "hidden": 192, "depth": 3, "tied": True, "dropout": 0.0}
STEPS = 1500
GPT, LSTM, SHORT = "attention", "LSTM", "attention, two tokens"
SOME, MUCH = "nats by context, 9 to 16", "nats by context, 65 to 128"


def contexts(figures: Figures, out: Path) -> Path:
    points = series(figures, "nats by context")
    return lines(out / "contexts.png", points, x="tokens read", y="nats a token", title="What a longer context gives", logarithmic="x")


def gain(f: Figures, name: str) -> Any:
    """What 65 to 128 tokens of context give beyond 9 to 16."""
    return f[name, SOME] - f[name, MUCH]


recipe = Recipe(
    facts=RecipeFacts(
        name="gpt2018",
        year=2018,
        title="Improving language understanding by generative pre-training",
        paper="OpenAI 2018",
        takes="some ten minutes on two CPU cores",
    ),
    question="What comes next in a text: does attention or recurrence know better, and what does a longer context give to each?",
    variants={
        GPT: Written(config=TEXT, train=training(STEPS, 1e-2), model="llama", settings=SIZE),
        LSTM: Written(
            config=TEXT, train=training(STEPS, 2e-2, adam()), model="rnn_lm", settings={"embedding": 64, "width": 160, "depth": 1}
        ),
        SHORT: Written(config=TEXT, train=training(STEPS, 1e-2), model="llama", settings=SIZE | {"attention": ("local(radius=1)",)}),
    },
    claims=(
        Claim(
            "attention and LSTM have the same number of parameters, within 5 %",
            lambda f: abs(f[GPT, "parameters"].mean / f[LSTM, "parameters"].mean - 1) <= 0.05,
            lambda f: f"{f[GPT, 'parameters'].mean:,.0f} and {f[LSTM, 'parameters'].mean:,.0f}",
        ),
        Claim(
            "after equal steps attention needs fewer nats a token than the LSTM",
            lambda f: (f[LSTM, "nats"] - f[GPT, "nats"]).low > 0,
            lambda f: f"{f[GPT, 'nats']} against {f[LSTM, 'nats']}; {f[GPT, 'seconds']} and {f[LSTM, 'seconds']} seconds",
        ),
        Claim(
            "from 9–16 tokens of context to 65–128, attention gains more than the LSTM",
            lambda f: (gain(f, GPT) - gain(f, LSTM)).mean > 0,
            lambda f: f"{gain(f, GPT)} against {gain(f, LSTM)} nats",
        ),
        Claim(
            "attention to two tokens a layer needs at least 0.1 nats more",
            lambda f: (f[SHORT, "nats"] - f[GPT, "nats"]).low >= 0.1,
            lambda f: f"{f[SHORT, 'nats']} against {f[GPT, 'nats']}",
        ),
        Claim(
            "and gains at most 0.05 from the longer context, where it sees nothing of it",
            lambda f: gain(f, SHORT).mean <= 0.05,
            lambda f: f"{gain(f, SHORT)} nats",
        ),
    ),
    pictures=(learning, contexts),
)
