"""What becomes of the pages in the site, without building it: 'make docs' does, strictly."""

import re
from types import SimpleNamespace

import pytest
from docs_hooks import on_page_content, on_page_markdown
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


def test_links_go_where_the_site_has_the_pages_and_say_their_titles():
    def of(name, text):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name), meta={})
        return on_page_markdown(text, page)

    assert of("README.md", "[a](examples/ctr_dnn.py)") == "[a](examples.md#ctr_dnnpy)"
    assert of("README.md", "[data.md](docs/data.md#x)") == "[Data](data.md#x)"
    assert of("data.md", "[BUILD.md](../BUILD.md)") == "[Building Horovod](BUILD.md)"
    assert of("launching/ssh.md", "[its rows](../embedding.md)") == "[its rows](../embedding.md)"


def test_the_names_of_classes_in_tables_can_be_broken():
    assert on_page_content("<td><code>MirroredStrategy</code> TensorFlow</td>") == (
        "<td><code>Mirrored<wbr>Strategy</code> TensorFlow</td>"
    )
    assert on_page_content("<p><code>MirroredStrategy</code></p>").count("<wbr>") == 0
