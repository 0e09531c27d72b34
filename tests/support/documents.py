"""The blocks of code of a page in Markdown.

The language of a block says what a test does with it:

* `python`: the blocks of a page are one program, which is run.
* `console`: the lines behind "$ " are typed into one shell, where other lines are what they print.
* `bash`: what cannot be run here; the shell and tf-config have to understand it.
* `py`: another library's Python, which has to be Python.
* `yaml`, `json`: have to be that.

Comments in the page, `<!-- python ... -->` and `<!-- console ... -->`, have what a reader need not
see: data and files that the blocks use. `<!-- cluster: --workers 2 -->` has the Python run by
tf-config.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_BLOCK = re.compile(r"^(?:```(\w+)|<!-- (python|console))\n(.*?)^(?:```|-->)$", re.S | re.M)
_CLUSTER = re.compile(r"^<!-- cluster: (.*) -->$", re.M)
_SPAN = re.compile(r"```.*?^```|`[^`\n]+`|<!--.*?-->", re.S | re.M)


class Block(NamedTuple):
    """Some lines of code.

    Attributes:
      language: what is written behind the backticks.
      text: the lines.
      line: number of the first one in the page, from 0.
      hidden: whether readers do not see it.
    """

    language: str
    text: str
    line: int
    hidden: bool


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[Block]:
    """Returns the blocks of a page that are in some languages."""
    text = page.read_text()
    found = [
        Block(match[1] or match[2], match[3], text.count("\n", 0, match.start(3)), match[1] is None)
        for match in _BLOCK.finditer(text)
    ]
    return [block for block in found if block.language in languages]


def pages_with(*languages: str) -> list[Path]:
    """Returns the pages that have blocks in some languages."""
    return [page for page in PAGES if blocks(page, *languages)]


def program(page: Path) -> str:
    """Returns the Python of a page, each line with the number that it has in the page."""
    lines: list[str] = []
    for block in blocks(page, "python"):
        lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n"


def cluster_of(page: Path) -> list[str]:
    """Returns the options of tf-config that a page's Python is run with; none for no tf-config."""
    match = _CLUSTER.search(page.read_text())
    return match[1].split() if match else []


def prose(page: Path) -> str:
    """Returns a page without its code."""
    return _SPAN.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Returns the names of a page's headings in links to them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?^```", "", page.read_text(), flags=re.S | re.M), re.M
    )
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}
