"""Write a software bill of materials, CycloneDX 1.6 in JSON, from the lock files: `make sbom`. Nothing but the standard library is needed.

    python requirements/sbom.py sbom.json

One component per package with its exact version and package URL; the hashes are those of all files that the lock allows, as distribution
references, because a component of CycloneDX has one hash per algorithm. torch is pinned by version only, and has none.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LOCKS = {
    "build.lock": "excluded",
    "test.lock": "required",
    "docs.lock": "excluded",
    "bench.lock": "excluded",
}  # CycloneDX: needed to run, or not


def locked(path: Path) -> dict[tuple[str, str], list[str]]:
    """The SHA-256 of the files of each package and version."""
    entries = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    found = {}
    for entry in entries:
        if entry and not entry.startswith("#"):
            pin, *hashes = entry.split()
            name, _, version = pin.partition("==")
            found[name, version] = [one.removeprefix("--hash=sha256:") for one in hashes]
    return found


def component(name: str, version: str, scope: str, hashes: list[str]) -> dict[str, Any]:
    address = f"pkg:pypi/{name}@{version}"
    found: dict[str, Any] = {"type": "library", "bom-ref": address, "name": name, "version": version, "scope": scope, "purl": address}
    if hashes:
        files = [{"type": "distribution", "url": address, "hashes": [{"alg": "SHA-256", "content": one}]} for one in hashes]
        found["externalReferences"] = files
    return found


def sbom() -> dict[str, Any]:
    version = re.search(r'__version__ = "([^"]+)"', (HERE.parent / "src/regard/__init__.py").read_text(encoding="utf-8"))
    torch = re.search(r"^torch==(\S+)$", (HERE.parent / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert version and torch
    root = f"pkg:pypi/regard@{version[1]}"
    parts = [
        component(name, number, scope, hashes) for lock, scope in LOCKS.items() for (name, number), hashes in locked(HERE / lock).items()
    ]
    parts.append(component("torch", torch[1], "required", []))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "library", "bom-ref": root, "name": "regard", "version": version[1], "purl": root}},
        "components": sorted(parts, key=lambda part: part["name"]),
    }


if __name__ == "__main__":
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "sbom.json")
    out.write_text(json.dumps(sbom(), indent=1) + "\n", encoding="utf-8")
    print(f"{out}: {len(sbom()['components'])} components")
