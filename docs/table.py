"""Write the tables of mechanisms between their markers in docs/mechanisms.md; with --check only say whether they are up to date."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from regard import MECHANISMS, Attention, FeatureMapAttention, PatternAttention, RecurrentAttention

PAGE = Path(__file__).parent / "mechanisms.md"
BEGIN, END = "<!-- mechanisms: written by `make docs-table` -->", "<!-- end of mechanisms -->"


@dataclass(frozen=True)
class Family:
    """Mechanisms that belong together: by a base class, and by name those that derive from none."""

    title: str
    text: str
    base: type[Attention] | None = None
    names: tuple[str, ...] = ()


FAMILIES = (
    Family(
        "Recurrent-era scores and windows",
        "One head between a decoder's state and an encoder's annotations: a score, a normaliser, an average. Published before 2017.",
    ),
    Family(
        "Exact", "Every pair that the pattern allows is compared.", names=("softmax", "differential", "entmax", "forgetting", "sigmoid")
    ),
    Family("Sparse patterns", "Softmax attention within a pattern of its own.", PatternAttention, ("adaptive_span",)),
    Family(
        "Clustered, hashed and sorted",
        "Keys are grouped by content, and queries attend within their group.",
        names=("lsh", "routing", "sinkhorn", "sortcut"),
    ),
    Family("Low-rank and compressed", "Fewer keys than tokens.", names=("linformer", "memory_compressed", "nystrom")),
    Family(
        "Feature maps",
        "Weights are dot products of features, so keys and values are summed once for all queries.",
        FeatureMapAttention,
        ("efficient",),
    ),
    Family("Recurrent state", "A matrix of fixed size that each token decays and writes to.", RecurrentAttention),
    Family(
        "Synthetic",
        "Weights predicted from the query alone, or learned for each pair of positions.",
        names=(
            "dense_synthesizer",
            "factorised_dense_synthesizer",
            "factorised_random_synthesizer",
            "mixture_synthesizer",
            "random_synthesizer",
        ),
    ),
    Family("Others", "In no family yet: name it in `docs/table.py`, or derive it from a base class."),
)
RECURRENT_ERA, OTHERS = FAMILIES[0], FAMILIES[-1]


def family_of(mechanism: type[Attention]) -> Family:
    for family in FAMILIES:
        if mechanism.facts.name in family.names or (family.base is not None and issubclass(mechanism, family.base)):
            return family
    return RECURRENT_ERA if mechanism.facts.paper.year < 2017 else OTHERS


def tables() -> str:
    """A section per family, oldest mechanisms first."""
    members = {family: [m for m in MECHANISMS if family_of(m) is family] for family in FAMILIES}
    return "\n\n".join(section(family, some) for family, some in members.items() if some)


def section(family: Family, mechanisms: list[type[Attention]]) -> str:
    """What is the same for all is said once, above the table."""
    rows = [row(mechanism) for mechanism in mechanisms]
    shared = [name for name in ("patterns", "causal", "state") if len(rows) > 1 and len({one[name] for one in rows}) == 1]
    header = [name for name in rows[0] if name not in shared]
    lines = [header, ["---"] * len(header), *([one[name] for name in header] for one in rows)]
    table = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    same = "" if not shared else f" All of them: {'; '.join(f'*{name}* {rows[0][name]}' for name in shared)}."
    return f"## {family.title}\n\n{family.text}{same}\n\n{table}"


def row(mechanism: type[Attention]) -> dict[str, str]:
    facts = mechanism.facts
    title, year, where = facts.paper
    number = where.removeprefix("arXiv:")
    return {
        "name": f"`{facts.name}`",
        "what it computes": facts.formula,
        "time": facts.time,
        "memory": facts.memory,
        "patterns": facts.patterns if isinstance(facts.patterns, str) else ", ".join(facts.patterns),
        "causal": facts.causal,
        "state": "none" if facts.state is None else f"`{facts.state.__name__}`",
        "paper": f"{title if number == where else f'[{title}](https://arxiv.org/abs/{number})'}, {year}",
    }


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        print(f"{PAGE.name} lacks the markers {BEGIN} and {END}", file=sys.stderr)
        return 1
    wanted = f"{before}{BEGIN}\n{tables()}\n{END}{after}"
    if "--check" in sys.argv[1:]:
        print("up to date" if wanted == text else f"the tables in {PAGE.name} are not those of the mechanisms")
        return int(wanted != text)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
