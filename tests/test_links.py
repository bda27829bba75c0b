"""Every link of the documents leads to a file, and to a heading in it, that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "examples" / "benchmarks" / "RESULTS.md",
]


def links_of(document):
    """Returns the file and heading that each link names, but for those to other sites."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(), flags=re.DOTALL)
    found = (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link)
    return [((document.parent / path).resolve() if path else document, heading) for path, _, heading in found]


def headings_of(document):
    """Returns the names by which links find a document's headings."""
    lines = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL).splitlines()
    titles = (line.lstrip("#").strip().lower() for line in lines if re.match("#+ ", line))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_somewhere(document):
    missing = [path for path, _ in links_of(document) if not path.exists()]
    missing += [f"{path.name}#{name}" for path, name in links_of(document) if name and name not in headings_of(path)]
    assert not missing


def test_each_document_is_linked():
    linked = {path for document in DOCUMENTS for path, _ in links_of(document)}
    assert {*ROOT.glob("docs/*.md")} <= linked


def test_links_are_found():
    found = {(path.name, heading) for path, heading in links_of(ROOT / "README.md")}
    assert {("README.md", "benchmarks"), ("steps.md", "metrics"), ("data.md", "")} <= found
    assert "metrics" in headings_of(ROOT / "docs" / "steps.md")
