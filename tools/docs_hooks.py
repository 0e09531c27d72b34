"""What mkdocs does beside mkdocs.yml: the pages that are not in docs/ become pages of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "BUILD.md", "CONTRIBUTING.md", "CHANGELOG.md")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of the root directory; README is the site's first one."""
    for name in PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Corrects links between the root directory and docs/, which are one directory here."""
    if page.file.src_uri in PAGES:
        return re.sub(r"\]\(docs/", "](", markdown)
    names = "|".join(map(re.escape, PAGES))
    return re.sub(rf"\]\(((?:\.\./)*)\.\./({names})", r"](\1\2", markdown)
