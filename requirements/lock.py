"""Write the lock files from constraints.txt: `make lock`, which needs the network.

    build.lock    what builds this package, and packages that are published as source only
    test.lock     what `.[all,tensorboard]` and the groups test and lint need: `make test`, `check`, `demo` …
    docs.lock     what the group docs needs besides: `make docs`
    bench.lock    what the group bench needs besides: `make bench`

Each has the SHA-256 of every file that the package index has of the version, for CPython 3.11 and later on Linux, macOS and Windows, so
that pip refuses any other (`--require-hashes`). What belongs to a file is read from the packages installed here, for Linux and macOS.
torch is not among them: which build is right (CPU, CUDA, another) depends on the machine. It is pinned by version, in constraints.txt.
"""

from __future__ import annotations

import re
import sys
import tomllib
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

HERE = Path(__file__).parent
BUILD = ("hatchling", "editables", "setuptools", "setuptools-scm", "wheel")
WITHOUT_DEPENDENCIES = ("joeynmt",)  # it asks for an old protobuf
BY_VERSION = ("torch",)
PLATFORMS = ("any", "manylinux", "linux_x86_64", "macosx", "win_amd64", "win_arm64")
MACHINES = ("any", "x86_64", "aarch64", "arm64", "universal2", "amd64")
ENVIRONMENTS = [
    {"sys_platform": system, "platform_system": name, "os_name": "posix", "python_version": python, "python_full_version": f"{python}.0"}
    for system, name in (("linux", "Linux"), ("darwin", "Darwin"))
    for python in ("3.11", "3.12", "3.13", "3.14")
]
HEAD = "# Written by `make lock`, from constraints.txt. Install with: pip install --require-hashes --no-deps -r FILE\n"


def constraints() -> dict[str, str]:
    """The exact version of each package."""
    lines = [line.partition("#")[0].strip() for line in (HERE.parent / "constraints.txt").read_text(encoding="utf-8").splitlines()]
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def closure(wanted: Iterable[Requirement]) -> set[str]:
    """Names of these packages and of all that they need, directly or not."""
    found: set[tuple[str, str]] = set()
    todo = [(canonicalize_name(one.name), extra) for one in wanted for extra in ("", *one.extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        if name in WITHOUT_DEPENDENCIES:
            continue
        try:
            needs = own_requirements() if name == "regard" else [Requirement(text) for text in distribution(name).requires or ()]
        except PackageNotFoundError:
            sys.exit(f"{name} is not installed here, so that what it needs is not known: make .venv/.installed, or make bench")
        for one in needs:
            if one.marker is None or any(one.marker.evaluate(environment | {"extra": extra}) for environment in ENVIRONMENTS):
                todo += [(canonicalize_name(one.name), inner) for inner in ("", *one.extras)]
    return {name for name, _ in found} - {"regard", *BY_VERSION}


def own_requirements() -> list[Requirement]:
    """As pyproject.toml has them now, not as they were when this package was installed."""
    project = project_file()["project"]
    extras = [(text, extra) for extra, texts in project["optional-dependencies"].items() for text in texts]
    return [Requirement(text) for text in project["dependencies"]] + [Requirement(f'{text}; extra == "{extra}"') for text, extra in extras]


def group(name: str) -> list[Requirement]:
    """A dependency group of pyproject.toml, with the groups that it includes."""
    found: list[Requirement] = []
    for one in project_file()["dependency-groups"][name]:
        found += [Requirement(one)] if isinstance(one, str) else group(one["include-group"])
    return found


def project_file() -> dict[str, Any]:
    return tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))


def tested() -> list[Requirement]:
    """All that `make test` needs: the library with every extra that the tests use, the tests, and the linters."""
    return [Requirement("regard[all,tensorboard]"), Requirement("torch"), *group("dev")]


def hashes(name: str, version: str) -> list[str]:
    """SHA-256 of the files of a version that fit the platforms above."""
    from pip._internal.models.index import PyPI  # not above: importing pip changes what `import distutils` finds

    with urllib.request.urlopen(f"{PyPI.simple_url}/{name}/", timeout=60) as answer:
        page = answer.read().decode()
    found = []
    for address, text in re.findall(r'<a [^>]*href="([^"]+)"[^>]*>([^<]+)</a>', page):
        digest = re.search(r"#sha256=([0-9a-f]{64})", address)
        if digest and fits(unescape(text).strip(), version):
            found.append(digest[1])
    return sorted(set(found))


def fits(file: str, version: str) -> bool:
    """Whether a file is of this version, and can be installed by CPython 3.11 or later on one of the platforms."""
    try:
        if not file.endswith(".whl"):
            return parse_sdist_filename(file)[1] == Version(version)
        _, found, _, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return False
    return found == Version(version) and any(
        (tag.interpreter in ("py3", "py2") or new_enough(tag.interpreter) or (tag.abi == "abi3" and tag.interpreter.startswith("cp3")))
        and tag.platform.startswith(PLATFORMS)
        and tag.platform.endswith(MACHINES)
        for tag in tags
    )


def new_enough(interpreter: str) -> bool:
    return bool(re.fullmatch(r"(cp|py)3\d\d", interpreter)) and int(interpreter[3:]) >= 11


def write(path: Path, names: Iterable[str], versions: dict[str, str]) -> None:
    names = sorted(names)
    if missing := [name for name in names if name not in versions]:
        sys.exit(f"no version in constraints.txt: {', '.join(missing)}")
    with ThreadPoolExecutor(4) as workers:
        found = dict(zip(names, workers.map(lambda name: hashes(name, versions[name]), names), strict=True))
    if missing := [name for name in names if not found[name]]:
        sys.exit(f"not in the package index: {', '.join(f'{name}=={versions[name]}' for name in missing)}")
    entries = [" \\\n    ".join([f"{name}=={versions[name]}", *(f"--hash=sha256:{one}" for one in found[name])]) for name in names]
    path.write_text(HEAD + "\n".join(entries) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(names)} packages, {sum(map(len, found.values()))} files")


def parts() -> dict[str, set[str]]:
    """The packages of each file."""
    build = closure(map(Requirement, BUILD))
    test = closure(tested())
    docs = closure(group("docs")) - test - build
    bench = closure([*group("bench"), *map(Requirement, WITHOUT_DEPENDENCIES)]) - test - build
    return {"build": build, "test": test - build, "docs": docs, "bench": bench - docs}


if __name__ == "__main__":
    for part, names in parts().items():
        write(HERE / f"{part}.lock", names, constraints())
