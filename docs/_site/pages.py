"""The pages of the documentation that are written from the code: one per mechanism and per model, and the API reference.

Plain Markdown with formulas in TeX, and pictures as bytes; nothing here needs mkdocs. `hooks.py` hands them to it.
"""

from __future__ import annotations

import importlib
import inspect
import io
from functools import cache
from html import escape
from typing import Any

import matplotlib.image

from regard.attention import MECHANISMS, Attention
from regard.attention.families import FAMILIES, family_of
from regard.catalogue import row, settings
from regard.docstrings import arguments, description, formulas, notes
from regard.errors import NotSupported
from regard.look.axes import DIVERGING, SEQUENTIAL
from regard.look.examples import example
from regard.look.lineage import measured_costs
from regard.models import MODELS
from regard.tasks import TASKS

from .chart import cost_chart, milliseconds

PICTURE_TOKENS = 32
ADVICE = ("Use it", "Avoid it", "Limits", "We differ", "Beyond it")
FACTS = {  # fact of the catalogue → what the page calls it
    "time": "time per head",
    "memory": "memory per head",
    "patterns": "patterns",
    "causal": "causal",
    "rows": "rows",
    "cross": "cross-attention",
    "state": "streams with",
    "normalised": "rows sum to one",
    "positional": "order of keys matters",
    "bias": "takes a bias",
}
PACKAGES = {  # of the API reference, in this order
    "regard.patterns": "Patterns",
    "regard.attention": "Attention",
    "regard.layers": "Layers",
    "regard.models": "Models",
    "regard.data": "Data",
    "regard.train": "Training",
    "regard.decode": "Decoding",
    "regard.look": "Looking",
    "regard.runs": "Runs",
    "regard.tasks": "Tasks",
    "regard.compare": "Comparing",
    "regard.interop": "transformers",
    "regard.serve": "Serving",
    "regard.testing": "Testing mechanisms",
    "regard.kernels": "Kernels",
    "regard.machine": "The machine",
    "regard.errors": "Errors",
}


# -- mechanisms --------------------------------------------------------------------------------------------------------


def mechanism_page(mechanism: type[Attention]) -> str:
    """Formula, picture, facts, advice, measured cost, code."""
    facts, said = row(mechanism), notes(mechanism)
    family = family_of(mechanism)
    lines = [
        f"# {facts['name']}",
        f"*{family.title}*, {facts['year']}. [On the lineage page](../lineage.md#{facts['name']}){{ .lineage-link }}",
        apart(description(mechanism)),
        picture_figure(mechanism),
        "## Facts",
        table(["fact", "value"], [[FACTS[name], plain(facts[name])] for name in FACTS] + [["paper", paper_link(facts)]]),
        *advice(said),
        *measured(facts["name"]),
        "## In code",
        f"```py\nfrom regard import {facts['class']}\n\nattention = {facts['class']}{signature(mechanism)}\n```",
        *argument_table(mechanism),
        f'By name, in models and on the command line: `attention="{facts["name"]}"`, `--attention {facts["name"]}`. '
        f"`regard show {facts['name']}` prints this page's facts, `regard check {facts['name']}` runs [the contract](../contract.md) on it.",
    ]
    return "\n\n".join(part for part in lines if part) + "\n"


def picture_figure(mechanism: type[Attention]) -> str:
    name = mechanism.facts.name
    try:
        pattern = example(mechanism, PICTURE_TOKENS).view().pattern
    except NotSupported:
        return ""
    alt = f"Weights of {name} on {PICTURE_TOKENS} tokens"
    caption = (
        f"Weights under `{pattern}`; rows are queries, columns are keys. The second half of the {PICTURE_TOKENS} tokens repeats the first."
    )
    return f'<figure class="weights" markdown>\n![{alt}](pictures/{name}.png)\n<figcaption markdown>{caption}</figcaption>\n</figure>'


@cache
def picture(mechanism: type[Attention]) -> bytes | None:
    """A pixel per weight, in the colours of `maps.save_png`."""
    try:
        drawn = example(mechanism, PICTURE_TOKENS).view()
    except NotSupported:
        return None
    weights_LM = drawn.weights_BHLM[0, 0].float()
    share_LM = weights_LM / weights_LM.abs().max().clamp(min=1e-9)
    shade_LM, colours = ((share_LM + 1) / 2, DIVERGING) if drawn.signed else (share_LM, SEQUENTIAL)
    file = io.BytesIO()
    matplotlib.image.imsave(file, shade_LM.numpy(), vmin=0, vmax=1, cmap=colours, format="png")
    return file.getvalue()


def advice(said: dict[str, str]) -> list[str]:
    given = [f"**{heading}** {said[heading]}" for heading in ADVICE if heading in said]
    return ["## When", *given] if given else []


def measured(name: str) -> list[str]:
    """The cost curve and its numbers."""
    costs = measured_costs()
    group = next((group for group in costs["groups"] if name in group["seconds"]), None)
    if group is None:
        return ["## Cost", "Not measured."]
    curves, exact = group["seconds"][name], group["seconds"].get("softmax", {})
    rows = []
    for operation, title in (("forward", "forward"), ("train", "forward + backward"), ("step", "one step of decoding")):
        if any(curves[operation]):
            rows.append([title, *("–" if s is None else milliseconds(s) for s in curves[operation])])
            if name != "softmax" and exact:
                ratios = [None if s is None or e is None else s / e for s, e in zip(curves[operation], exact[operation], strict=True)]
                rows.append(["– of exact attention", *("–" if r is None else f"{r:.2f} ×" for r in ratios)])
    where = f"{costs['sizes']}, {'causal' if group['causal'] else 'not causal'}; {costs['machine']}; {costs['date']}."
    return [
        "## Cost",
        cost_chart(costs, group, name),
        table(["tokens", *(f"{length:,}" for length in costs["lengths"])], rows),
        f"{where} Random inputs, parameters as initialised. [Compare](../compare.md) says how, and measures on your machine.",
    ]


def signature(entry: type[Any]) -> str:
    """The constructor as one calls it: required arguments by a plausible size, defaults as they are."""
    sizes = {"heads": "4", "head_dim": "64", "max_length": "1024"}
    parameters = list(inspect.signature(entry.__init__).parameters.values())[1:]
    shown = [
        f"{p.name}={sizes.get(p.name, '…') if p.default is p.empty else repr(p.default)}"
        for p in parameters
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return f"({', '.join(shown)})"


def argument_table(entry: type[Any]) -> list[str]:
    """A row per argument of the constructor."""
    rows = [[f"`{name}`", text] for name, text in arguments(entry).items()]
    return [table(["argument", "meaning"], rows)] if rows else []


def mechanisms_nav() -> list[Any]:
    """Pages by family."""
    groups = {family.title: [m.facts.name for m in MECHANISMS if family_of(m) is family] for family in FAMILIES}
    return [{title: [{name: f"mechanisms/{name}.md"} for name in names]} for title, names in groups.items() if names]


# -- models ------------------------------------------------------------------------------------------------------------


def model_page(model: type[Any]) -> str:
    """Formulas of its module, its docstring, settings, sizes, and how to train it."""
    facts, said = row(model), notes(model)
    module = inspect.getmodule(model)
    written = (module.__doc__ or "") if module else ""
    tasks = [task.name for task in TASKS if issubclass(model, task.model_kind)]
    lines = [
        f"# {facts['name']}",
        f"{paper_link(facts)}, {facts['year']}",
        apart(description(model)),
        *(f"$${formula}$$" for formula in formulas(written) if formula not in formulas(description(model))),
        *([f"**Cost** {said['Cost']}"] if "Cost" in said else []),
        *advice(said),
        "## Settings",
        table(
            ["setting", "default", "meaning"],
            [
                [f"`{one['name']}`", f"`{one['default']}`" if one["default"] else "from the data", one["meaning"]]
                for one in settings(model.Config)
            ],
        ),
        *([f"Published sizes: {', '.join(f'`{size}`' for size in model.sizes)}."] if model.sizes else []),
        "## In code",
        f'```py\nfrom regard.models import build\n\nmodel = build("{facts["name"]}", …)  # settings as above\n```',
    ]
    if tasks:
        lines += ["```sh\n" + "\n".join(f"regard train {task} --model {facts['name']} --out runs/mine" for task in tasks) + "\n```"]
    return "\n\n".join(part for part in lines if part) + "\n"


def models_overview() -> str:
    head = "# Models\n\nPublished systems, one file each. `regard show NAME` prints what is here; `--set NAME=VALUE` changes a setting.\n\n"
    rows = []
    for facts in map(row, MODELS):
        rows.append([str(facts["year"]), f"[{facts['name']}]({facts['name']}.md)", facts["summary"], paper_link(facts)])
    return head + table(["year", "name", "what it is", "paper"], sorted(rows)) + "\n"


# -- API reference -----------------------------------------------------------------------------------------------------


def public_names(package: str) -> list[str]:
    """Addresses of what a package offers: classes and functions that are defined in it, mechanisms and models apart: they have pages."""
    module = importlib.import_module(package)
    paged = {*MECHANISMS, *MODELS}
    found = []
    for name in dir(module):
        value = getattr(module, name)
        inside = getattr(value, "__module__", "") or ""
        if name.startswith("_") or not (inspect.isclass(value) or inspect.isfunction(value)) or not inside.startswith(package):
            continue
        if value not in paged and inspect.getdoc(value) and getattr(value, "__name__", None) == name:
            found.append(f"{inside}.{name}")
    return sorted(dict.fromkeys(found), key=lambda address: address.rpartition(".")[2].lower())


def api_page(package: str) -> str:
    module = importlib.import_module(package)
    text = inspect.getdoc(module) or ""
    first, _, rest = text.partition("\n")
    listed = "\n\n".join(f"::: {address}" for address in public_names(package))
    outline = rest.strip("\n")
    if outline and "\n|" not in f"\n{outline}":  # a list of files, in columns
        outline = f"```text\n{inspect.cleandoc(outline)}\n```"
    return f"# {package}\n\n{first}\n\n{outline}\n\n{listed}\n"


# -- parts -------------------------------------------------------------------------------------------------------------


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def apart(text: str) -> str:
    """With an empty line between formulas, which Markdown needs."""
    return text.replace("$$\n$$", "$$\n\n$$")


def paper_link(facts: dict[str, Any]) -> str:
    number = facts["paper"].removeprefix("arXiv:")
    title = escape(facts["title"], quote=False)
    return f"[{title}](https://arxiv.org/abs/{number}), {facts['paper']}" if number != facts["paper"] else f"{title}, {facts['paper']}"


def plain(fact: Any) -> str:
    """A fact as words."""
    if isinstance(fact, bool) or fact is None:
        return {True: "yes", False: "no", None: "–"}[fact]
    return ", ".join(map(str, fact)) if isinstance(fact, list | tuple) else str(fact)
