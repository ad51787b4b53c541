"""Write the tables of mechanisms between their markers in docs/mechanisms.md; with --check only say whether they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from regard import MECHANISMS, Attention
from regard.attention.families import FAMILIES, Family, family_of

PAGE = Path(__file__).parent / "mechanisms.md"
BEGIN, END = "<!-- mechanisms: written by `make docs-table` -->", "<!-- end of mechanisms -->"


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
