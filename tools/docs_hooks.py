"""What mkdocs does beside mkdocs.yml: pages from elsewhere, and the help of tf-config."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "BUILD.md", "CONTRIBUTING.md", "CHANGELOG.md")
COMMANDS_PAGE = "api/command_line.md"
COMMANDS_PLACE = "<!-- help of all commands: put here by tools/docs_hooks.py -->"


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of the root directory; README is the site's first one."""
    from mkdocs.structure.files import File  # in the environment of 'make docs' alone

    for name in PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Corrects links between the root directory and docs/, and fills in the help of tf-config."""
    if page.file.src_uri in PAGES:
        return re.sub(r"\]\(docs/", "](", markdown)
    if page.file.src_uri == COMMANDS_PAGE:
        markdown = markdown.replace(COMMANDS_PLACE, "\n\n".join(help_of_commands()))
    names = "|".join(map(re.escape, PAGES))
    return re.sub(rf"\]\(((?:\.\./)*)\.\./({names})", r"](\1\2", markdown)


def help_of_commands() -> Iterator[str]:
    """Yields a section for each command of tf-config."""
    os.environ["COLUMNS"] = "96"
    sys.path.insert(0, str(ROOT))
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
