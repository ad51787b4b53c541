"""Copy the pictures of docs/captions.md from runs of recipes: `python docs/captions.py RUNS` reads RUNS/xu2015, RUNS/clip2021 and
RUNS/dalle2021, of those that there are."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent / "pictures"
PICTURES = {
    "captions.png": "xu2015/words_soft.png",
    "similarities.png": "clip2021/similarities.png",
    "drawings.png": "dalle2021/drawings.png",
}


def main(runs: Path) -> None:
    for name, made in PICTURES.items():
        if (runs / made).exists():
            shutil.copy(runs / made, HERE / name)
            print(f"wrote {HERE / name}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
