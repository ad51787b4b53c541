"""Training throughput of models that read: HAN on documents and ESIM on pairs, against plain PyTorch forms of the same models, side by side in one run.

Run: python -m benchmarks.reading [--quick] [--only han]        Takes: five minutes.
"""

from __future__ import annotations

import argparse

from . import reading_esim, reading_han

PARTS = {"esim": reading_esim.main, "han": reading_han.main}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds; prints only")
    parser.add_argument("--only", choices=PARTS, help="one of the models")
    given = parser.parse_args()
    for name, part in PARTS.items():
        if given.only in (None, name):
            part(given.quick)


if __name__ == "__main__":
    main()
