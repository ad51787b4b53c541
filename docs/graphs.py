"""Draw the picture of docs/graphs.md from a run: `python docs/graphs.py runs/noise`, of
`regard train graphs --data blocks:noise=30 --patience 0 --steps 400 --set dropout=0.2 --set attention_dropout=0`."""

from __future__ import annotations

import sys
from pathlib import Path

from regard.look import Maps
from regard.tasks import attention_maps, load_run
from regard.tasks.options.graphs import NeighbourhoodOptions

PICTURES = Path(__file__).parent / "pictures"
NODE = "a202"

if __name__ == "__main__":
    (folder,) = sys.argv[1:]
    PICTURES.mkdir(exist_ok=True)
    options = NeighbourhoodOptions(node=NODE, hops=1)
    _, maps = attention_maps(load_run(folder), "blocks:noise=30", layers="layers.0*", options=options)
    Maps(maps.all).save_png(PICTURES / "graph-attention.png")
