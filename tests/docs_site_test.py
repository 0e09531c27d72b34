"""What becomes of the pages in the site, without building it: 'make docs' does, strictly."""

import re

import pytest
from doctest_fences import fence_doctests
from flowchart import svg

from tests.support.documents import PAGES, ROOT

CONFIG = (ROOT / "mkdocs.yml").read_text()


def test_the_site_needs_no_network():
    """Neither fonts nor scripts nor styles come from another server."""
    assert re.search(r"^  font: false\b", CONFIG, re.M)
    assert not re.search(r"https?://", CONFIG)
    for path in (ROOT / "docs").rglob("*.css"):
        assert not re.search(r"https?://|@import|url\((?!#)", path.read_text()), path
    for page in PAGES:
        assert not re.search(r"!\[[^]]*\]\(http|<(script|img|link)\b", page.read_text()), page


@pytest.mark.parametrize(
    "source",
    [
        each
        for page in PAGES
        for each in re.findall(r"^```mermaid\n(.*?)^```$", page.read_text(), re.S | re.M)
    ],
)
def test_each_flowchart_is_drawn(source):
    """Without this, Mermaid would be text on the site, where no script draws it."""
    drawn = svg(source)
    for text in re.findall(r'"([^"]*)"', source):
        for line in text.split("<br>"):
            assert f">{line}</text>" in drawn
    assert drawn.count("marker-end") == 0  # as the style sheet has it
    assert drawn.count("<path d=") == source.count("-->")


def test_an_arrow_goes_up_from_the_bottom():
    up, down = (svg(f"flowchart {way}\n a --> b") for way in ("BT", "TB"))
    assert re.findall(r">(\w)</text>", up) == ["b", "a"]
    assert re.findall(r">(\w)</text>", down) == ["a", "b"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("graph LR\n a --> b", "must begin with"),
        ("flowchart TB\n a -.-> b", "must be a"),
        ("flowchart TB\n a --> b\n b --> a", "circle"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(source, message):
    with pytest.raises(ValueError, match=message):
        svg(source)


def test_doctests_keep_their_lines_and_their_indentation():
    text = "One.\n\n  >>> a = [\n  ...     1]\n  >>> a\n  [1]\n\nTwo.\n\n>>> 2\n2"
    assert fence_doctests(text) == (
        "One.\n\n  ```pycon\n  >>> a = [\n  ...     1]\n  >>> a\n  [1]\n  ```\n\nTwo.\n\n"
        "```pycon\n>>> 2\n2\n```"
    )
    assert fence_doctests("No test: a >> b") == "No test: a >> b"
