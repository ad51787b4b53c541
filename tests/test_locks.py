"""What is installed by hash: the locks agree with constraints.txt, with what is installed here and with each other; the list of materials."""

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "requirements"))
lock = pytest.importorskip("lock")
sbom = pytest.importorskip("sbom")
sys.path.pop(0)
LOCKS = {path.stem: sbom.locked(path) for path in sorted((ROOT / "requirements").glob("*.lock"))}


def test_locks_have_the_versions_of_the_constraints_and_whole_hashes():
    assert set(LOCKS) == {"bench", "build", "docs", "test"}
    names = [name for pins in LOCKS.values() for name, _ in pins]
    assert len(set(names)) == len(names) and set(names) | {"torch"} == set(lock.constraints())
    for pins in LOCKS.values():
        for (name, number), hashes in pins.items():
            assert lock.constraints()[name] == number, name
            assert hashes and all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes) and len(set(hashes)) == len(hashes)


def test_locks_hold_all_that_is_needed():
    """As the metadata of the packages here say; a dependency that was added is missing until `make lock`."""
    build = lock.closure(map(lock.Requirement, lock.BUILD[:1]))  # the others are not needed once all is installed
    needed = lock.closure(lock.tested())
    locked = {name for part in ("build", "test") for name, _ in LOCKS[part]}
    assert needed | build <= locked
    assert {name for name, _ in LOCKS["test"]} <= needed, "no longer needed"


def test_what_is_tested_is_what_is_locked():
    wrong = []
    for (name, number), _ in LOCKS["test"].items():
        try:
            if version(name) != number:
                wrong.append(f"{name}: {version(name)} is installed, {number} is locked")
        except PackageNotFoundError:
            wrong.append(f"{name} is not installed")
    assert not wrong


@pytest.mark.parametrize(
    ("file", "fits"),
    [
        ("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", True),
        ("numpy-2.4.6-cp313-cp313t-macosx_14_0_arm64.whl", True),
        ("numpy-2.4.6-cp312-cp312-win_amd64.whl", True),
        ("numpy-2.4.6-py3-none-any.whl", True),
        ("numpy-2.4.6.tar.gz", True),
        ("numpy-2.4.6-cp38-abi3-manylinux_2_17_aarch64.whl", True),
        ("numpy-2.4.5-py3-none-any.whl", False),
        ("numpy-2.4.6-cp310-cp310-manylinux_2_27_x86_64.whl", False),
        ("numpy-2.4.6-pp311-pypy311_pp73-manylinux_2_27_x86_64.whl", False),
        ("numpy-2.4.6-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("numpy-2.4.6-cp311-cp311-manylinux_2_27_ppc64le.whl", False),
        ("numpy-2.4.6.exe", False),
    ],
)
def test_which_files_are_allowed(file, fits):
    assert lock.fits(file, "2.4.6") == fits


def test_the_list_of_materials(tmp_path):
    """CycloneDX 1.6: what its schema requires of these fields, one component per package, and every hash of the locks."""
    out = tmp_path / "sbom.json"
    subprocess.run([sys.executable, "-S", ROOT / "requirements" / "sbom.py", out], check=True, capture_output=True)
    found = json.loads(out.read_text())
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.6", 1)
    assert {"$schema", "bomFormat", "specVersion", "version", "metadata", "components"} == set(found)
    parts = {part["name"]: part for part in [found["metadata"]["component"], *found["components"]]}
    assert len(parts) == 1 + len(found["components"]) == 2 + sum(map(len, LOCKS.values()))
    for part in parts.values():
        assert part["type"] == "library" and part["bom-ref"] == part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}"
        assert part.get("scope", "required") in ("required", "optional", "excluded")
    for pins in LOCKS.values():
        for (name, _), hashes in pins.items():
            references = parts[name]["externalReferences"]
            assert [one["hashes"] for one in references] == [[{"alg": "SHA-256", "content": one}] for one in hashes]
            assert {one["type"] for one in references} == {"distribution"}
    assert "externalReferences" not in parts["torch"] and parts["torch"]["version"] == lock.constraints()["torch"]
