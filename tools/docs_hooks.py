"""What mkdocs does beside mkdocs.yml: pages from elsewhere, drawings, and the help of tf-config."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowchart import svg

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "BUILD.md", "CONTRIBUTING.md", "CHANGELOG.md")
COMMANDS_PAGE = "api/command_line.md"
COMMANDS_PLACE = "<!-- help of all commands: put here by tools/docs_hooks.py -->"
# A block of code on a page of the site holds this many characters on a screen of 1280 pixels.
COLUMNS = 80


def on_config(config: Any) -> Any:
    """Names the version at the head of each page."""
    # For tf_config below, and for what mkdocstrings loads from tools/.
    sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
    version = re.search('__version__ = "(.*)"', (ROOT / "strategies" / "__init__.py").read_text())
    config.site_name += f" {version[1]}"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of the root directory; README is the site's first one."""
    from mkdocs.structure.files import File  # in the environment of 'make docs' alone

    for name in PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Corrects links to and from the root directory, draws, and fills in the help of tf-config."""
    markdown = re.sub(
        r"^```mermaid\n(.*?)^```$",
        lambda match: f"<figure>{svg(match[1])}</figure>",
        markdown,
        flags=re.S | re.M,
    )
    here = ROOT if page.file.src_uri in PAGES else (ROOT / "docs" / page.file.src_uri).parent
    markdown = re.sub(
        r"\[[\w/.]+\.md\](?=\(([\w/.]+\.md)(#[\w-]*)?\))",
        lambda match: f"[{title_of(here / match[1])}]",
        markdown,
    )
    if page.file.src_uri == "README.md":
        page.meta["hide"] = ["navigation"]  # there is nothing beside it: the tabs have the rest
    if page.file.src_uri in PAGES:
        # The site has no scripts, but a section on each.
        markdown = re.sub(r"\]\(examples/(\w+)\.py\)", r"](examples.md#\1py)", markdown)
        return re.sub(r"\]\(docs/", "](", markdown)
    if page.file.src_uri == COMMANDS_PAGE:
        markdown = markdown.replace(COMMANDS_PLACE, "\n\n".join(help_of_commands()))
    names = "|".join(map(re.escape, PAGES))
    return re.sub(rf"\]\(((?:\.\./)*)\.\./({names})", r"](\1\2", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Lets a browser break the names of classes in tables between their words."""
    return re.sub(
        r"<t[hd]>.*?</t[hd]>",
        lambda cell: re.sub(r"<code>[^<]*</code>", _with_breaks, cell[0]),
        html,
        flags=re.S,
    )


def _with_breaks(code: re.Match[str]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "<wbr>", code[0])


def title_of(page: Path) -> str:
    """Returns what a page is called on the site, where a file's name says little."""
    return page.read_text().partition("\n")[0].removeprefix("# ")


def help_of_commands() -> Iterator[str]:
    """Yields a section for each command of tf-config."""
    os.environ["COLUMNS"] = str(COLUMNS)
    from tf_config.cli import parser  # imports neither TensorFlow nor what is not installed here

    for one in commands_of(parser()):
        yield f"## {one.prog}\n\n```text\n{one.format_help()}```"


def commands_of(one: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yields the parsers below one, those that have no commands of their own."""
    below = [
        each
        for action in one._actions
        if isinstance(action, argparse._SubParsersAction)
        for each in action.choices.values()
    ]
    for each in below:
        yield from commands_of(each)
    if not below:
        yield one
