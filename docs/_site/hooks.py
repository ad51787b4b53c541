"""mkdocs builds the documentation from docs/, from the documents of the repository, and from pages written from the code.

| event | what happens |
|---|---|
| `on_config` | the navigation: named guides first, then every other page of docs/ |
| `on_files` | pages that are written: mechanisms, models, API, notebooks, README and its neighbours |
| `on_page_markdown` | links between documents of the repository become links between pages |
| `on_page_content` | formulas in TeX become MathML, which browsers draw themselves |
| `on_page_context` | the lineage page is a page of its own |
"""

from __future__ import annotations

import html
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from _site import notebooks, pages  # noqa: E402
from regard.attention import MECHANISMS  # noqa: E402
from regard.look import lineage  # noqa: E402
from regard.models import MODELS  # noqa: E402

DOCUMENTS = {  # of the repository, and the page that each becomes
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "AGENTS.md": "agents.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "LICENSE": "license.md",
    "notebooks": "notebooks/index.md",
}
GUIDES = (
    "translation.md",
    "summarization.md",
    "language-models.md",
    "defaults.md",
    "train-text.md",
    "data.md",
    "serving.md",
    "explorer.md",
    "compare.md",
    "patterns.md",
)
GUIDES += ("from-pytorch.md", "checkpoints.md", "transformers-attention.md")
PLACED = {
    *GUIDES,
    "start.md",
    "follow_a_token.md",
    "mechanisms.md",
    "results.md",
    "results-earlier.md",
    "contract.md",
    "task-contract.md",
    "promises.md",
    "glossary.md",
}
MATH = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
SPELLING = {  # TeX that the converter does not know → the same in what it knows; brackets grow by themselves
    r"\\[tdc]frac\b": r"\\frac",
    r"\\[bB]igg?[lr]?(?![a-zA-Z])": "",
    r"\\arg\\max": r"\\mathrm{arg\\,max}",
}
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
LANGUAGES = {".py": "py", ".cff": "yaml"}  # files that documents link to, and how they are shown


def on_config(config: Any) -> Any:
    others = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name not in PLACED)
    config.nav = [
        {"Home": "index.md"},
        {"Start": "start.md"},
        {"Guides": [*GUIDES, *others]},
        {"Notebooks": ["notebooks/index.md", *({one.title: f"notebooks/{one.name}.md"} for one in notebooks.read_all(ROOT / "notebooks"))]},
        {"Lineage": "lineage.md"},
        {"Mechanisms": ["mechanisms.md", *pages.mechanisms_nav()]},
        {"Models": ["models/index.md", *({model.facts.name: f"models/{model.facts.name}.md"} for model in MODELS)]},
        {"Results": ["results.md", {"Benchmarks": "benchmarks.md"}, "results-earlier.md", "promises.md"]},
        {
            "Extend": [
                "follow_a_token.md",
                *(f"extend/{path.name}" for path in sorted((ROOT / "docs" / "extend").glob("*.md"))),
                "contract.md",
                "task-contract.md",
            ]
        },
        {"API": [{title: f"api/{package}.md"} for package, title in pages.PACKAGES.items()]},
        {"Log": ["log/index.md", *(f"log/{path.name}" for path in sorted((ROOT / "docs" / "log").glob("2*.md"), reverse=True))]},
        {
            "Project": [
                *("glossary.md", "architecture.md", "contributing.md", "agents.md", "changelog.md"),
                *("security.md", "conduct.md", "license.md"),
            ]
        },
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    def add(name: str, content: str | bytes) -> None:
        files.append(File.generated(config, name, content=content))

    read = notebooks.read_all(ROOT / "notebooks")
    for source, name in DOCUMENTS.items():
        add(name, notebooks.overview(read) if source == "notebooks" else document_text(source))
    for mechanism in MECHANISMS:
        add(f"mechanisms/{mechanism.facts.name}.md", pages.mechanism_page(mechanism))
        if (drawn := pages.picture(mechanism)) is not None:
            add(f"mechanisms/pictures/{mechanism.facts.name}.png", drawn)
    add("models/index.md", pages.models_overview())
    for model in MODELS:
        add(f"models/{model.facts.name}.md", pages.model_page(model))
    for package in pages.PACKAGES:
        add(f"api/{package}.md", pages.api_page(package))
    for notebook in read:
        add(f"notebooks/{notebook.name}.md", notebook.markdown)
        for name, data in notebook.pictures.items():
            add(f"notebooks/{name}", data)
    add("lineage.md", lineage_text())
    for path in linked_files():
        text = f"# {path.removeprefix('src/')}\n\n```{LANGUAGES[Path(path).suffix]}\n{(ROOT / path).read_text(encoding='utf-8')}```\n"
        files.append(File.generated(config, source_page(path), content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def linked_files() -> list[str]:
    """Files of the repository that documents link to, such as a module: each becomes a page."""
    found = set()
    for document in [*(ROOT / name for name in DOCUMENTS if name.endswith(".md")), *(ROOT / "docs").rglob("*.md")]:
        for _, target, _ in LINK.findall(document.read_text(encoding="utf-8")):
            if Path(target).suffix in LANGUAGES and not re.match(r"[a-z]+:", target):
                found.add((document.parent / target).resolve().relative_to(ROOT).as_posix())
    return sorted(found)


def source_page(path: str) -> str:
    return f"source/{path.removeprefix('src/')}.md"


def lineage_text() -> str:
    """What search finds, and where links lead; `lineage.html` replaces it by the page itself."""
    anchors = "".join(f'<a id="{mechanism.facts.name}"></a>' for mechanism in MECHANISMS)
    return f"---\ntemplate: lineage.html\n---\n\n# Lineage\n\nEvery mechanism by year and family, with sliders to try ideas with.\n\n{anchors}\n"


def document_text(source: str) -> str:
    text = (ROOT / source).read_text(encoding="utf-8")
    return {"LICENSE": f"# Licence\n\n```text\n{text}```\n", "README.md": f"---\nhide: [navigation]\n---\n\n{text}"}.get(source, text)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    sources = {name: source for source, name in DOCUMENTS.items() if (ROOT / source).is_file()}
    here = page.file.src_uri
    source = sources.get(here, f"docs/{here}")

    def move(match: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", match[2]):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        name = source_page(target) if Path(target).suffix in LANGUAGES else DOCUMENTS.get(target, target.removeprefix("docs/"))
        return match[1] + posixpath.relpath(name, posixpath.dirname(here) or ".") + match[3]

    if here == "mechanisms.md":  # its tables name every mechanism
        markdown = re.sub(r"^\| `(\w+)` \|", r"| [`\1`](mechanisms/\1.md) |", markdown, flags=re.MULTILINE)
    return LINK.sub(move, markdown)


def on_page_content(html_text: str, page: Any, config: Any, files: Files, **more: Any) -> str:
    return MATH.sub(lambda match: render(html.unescape(match[2]).strip()), html_text)


def render(tex: str) -> str:
    r"""MathML of `\(…\)`, in the line, or `\[…\]`, displayed."""
    inner = tex[2:-2].strip()
    return mathml(inner, "inline") if tex.startswith(r"\(") else "\n".join(lines_of(inner))


def lines_of(tex: str) -> list[str]:
    r"""A displayed formula, in lines: what stands apart (`\qquad`) goes below each other, so that narrow screens show all of it."""
    parts = [part.strip() for part in tex.split(r"\qquad")]
    whole = all(part and part.count("{") == part.count("}") for part in parts)
    return [mathml(part) for part in (parts if whole else [tex])]


def mathml(tex: str, display: str = "block") -> str:
    for wanted, known in SPELLING.items():
        tex = re.sub(wanted, known, tex)
    return convert(tex, display=display)


def on_page_context(context: Any, page: Any, config: Any, nav: Any) -> Any:
    if page.file.src_uri == "lineage.md":
        context["lineage"] = lineage.page(lineage.document(render=lines_of, link=page_link(config)))
    return context


def page_link(config: Any) -> str:
    return "../mechanisms/NAME/" if config.use_directory_urls else "mechanisms/NAME.html"
