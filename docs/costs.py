"""Join comparisons into the costs that the documentation shows: `python docs/costs.py a.json b.json` writes src/regard/look/costs.json.

Each file is what `regard compare --json` wrote, all on one machine and on one day. Mechanisms without a causal form are measured with
--no-causal, in a file of their own; exact attention is part of each comparison.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from regard.look.lineage import costs_of

TARGET = Path(__file__).parents[1] / "src" / "regard" / "look" / "costs.json"


if __name__ == "__main__":
    costs = costs_of([Path(name).read_bytes() for name in sys.argv[1:]])
    TARGET.write_text(json.dumps(costs, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{TARGET.name}: {sum(len(group['seconds']) for group in costs['groups'])} curves, {TARGET.stat().st_size // 1024} KiB")
