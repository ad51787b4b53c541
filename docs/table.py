"""Write the table of mechanisms between its markers in README.md; with --check only say whether it is up to date."""

import sys
from pathlib import Path

from regard import catalogue

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- mechanisms: written by `make docs-table` -->", "<!-- end of mechanisms -->"


def main() -> int:
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        print(f"{README.name} lacks the markers {BEGIN} and {END}", file=sys.stderr)
        return 1
    wanted = f"{before}{BEGIN}\n{catalogue.markdown_table()}\n{END}{after}"
    if "--check" in sys.argv[1:]:
        print("up to date" if wanted == text else f"the table in {README.name} is not that of the catalogue")
        return int(wanted != text)
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
