"""README and docs: their code works, their links resolve, and the names in them are there."""

import argparse
import ast
import functools
import importlib
import json
import re
import shlex
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tests.support.documents import (
    PAGES,
    ROOT,
    anchors,
    blocks,
    cluster_of,
    name_of,
    pages_with,
    program,
    prose,
)
from tests.support.job import HANGING_SECONDS
from tf_config.cli import parser

DOCS = [page for page in PAGES if page.parent != ROOT]
OUTSIDE = "README.md", "BUILD.md", "CONTRIBUTING.md"  # their commands build, or take minutes


# What a page shows of the timeline is tested with two real workers in callbacks/timeline_test.py.
SLOW_PAGES = {ROOT / "docs" / "profiling.md"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page in SLOW_PAGES else ())
        for page in pages_with("python")
        if page in DOCS
    ],
    ids=name_of,
)
def test_the_python_of_a_page_runs(page, forked):
    script = forked.script(program(page), f"{page.stem}.py")
    if cluster_of(page):
        code, output = forked.run(*cluster_of(page), script)
    else:
        code, output = forked.finish(
            forked.popen([forked.python, str(script)]), timeout=HANGING_SECONDS
        )
    assert code == 0, output


def typed(block):
    """Returns the commands of a block, each with the lines that it prints."""
    if block.hidden:
        return [(block.text, [])]
    found = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif found:
            found[-1][1].append(line)
    return found


@pytest.mark.parametrize("page", [p for p in pages_with("console") if p in DOCS], ids=name_of)
def test_the_commands_of_a_page_print_what_it_says(page, shell):
    commands = [each for block in blocks(page, "console") for each in typed(block)]
    mark = "--- end of command"
    output = shell("\n".join(f"{command}\necho; echo '{mark}'" for command, _ in commands))
    for (command, expected), printed in zip(commands, output.split(mark), strict=False):
        lines = [line.rstrip() for line in printed.splitlines()]
        for line in expected:
            assert line.rstrip() in lines, f"{command}\n{printed}"


@pytest.mark.parametrize("page", pages_with("bash"), ids=name_of)
def test_the_shell_and_tf_config_understand_what_is_not_run(page):
    for block in blocks(page, "bash"):
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
        for line in re.sub(r"\\\n", " ", block.text).splitlines():
            words = shlex.split(re.sub(r"\$\w+", "1", line), comments=True)
            while "tf-config" in words:
                words = words[words.index("tf-config") + 1 :]
                parser().parse_args(words)


@pytest.mark.parametrize("page", pages_with("py", "yaml", "json"), ids=name_of)
def test_what_is_shown_is_well_formed(page):
    for block in blocks(page, "py", "yaml", "json"):
        {"py": ast.parse, "yaml": yaml.safe_load, "json": json.loads}[block.language](block.text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_resolves(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_sentence_does_not_go_on_with_a_number_at_the_start_of_a_line(page):
    """In Markdown, "gets\\n32. A last batch" is the beginning of a list."""
    expected = {1}
    for line in prose(page).splitlines():
        if number := re.match(r"\s*(\d+)[.)] ", line):
            assert int(number[1]) in expected, line
            expected = {1, int(number[1]) + 1}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_names_in_a_page_are_there(page):
    """What a page calls `strategies.something` is that, and so are options of tf-config."""
    for name in set(re.findall(r"\bstrategies((?:\.[A-Za-z]\w*)+)", page.read_text())):
        if page.name != "CHANGELOG.md":  # which tells of what was renamed, too
            assert resolved(name.removeprefix(".").split(".")), f"strategies{name}"
    for command, rest in re.findall(r"`tf-config ([a-z][a-z-]+)([^`\n]*)`", page.read_text()):
        assert command in options(), command
        own = re.split(r" -- | \S+\.py\b", rest)[0]
        for option in re.findall(r"(?<!\S)--[a-z-]+", own):
            assert option in options()[command], f"tf-config {command} {option}"


def resolved(names):
    found = importlib.import_module("strategies")
    for name in names:
        if not hasattr(found, name):
            try:
                importlib.import_module(f"{found.__name__}.{name}")
            except (ImportError, AttributeError):
                return False
        found = getattr(found, name)
    return True


@functools.cache
def options():
    """Returns the options of each command, those of its own commands among them."""

    def commands_of(one):
        return {
            name: each
            for action in one._actions
            if isinstance(action, argparse._SubParsersAction)
            for name, each in action.choices.items()
        }

    def known(one):
        return {*one._option_string_actions}.union(*map(known, commands_of(one).values()))

    return {name: known(each) for name, each in commands_of(parser()).items()}


def test_the_pages_are_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS:
        assert f" {page.relative_to(ROOT / 'docs')}\n" in text, page


def test_every_public_name_is_in_the_reference():
    shown = "".join(page.read_text() for page in ROOT.glob("docs/api/*.md"))
    for package in ("strategies", "strategies.callbacks", "tf_config"):
        for name in importlib.import_module(package).__all__:
            if f"{package}.{name}" not in ("strategies.callbacks", "strategies.LossScaleOptimizer"):
                assert f"::: {package}.{name}\n" in shown, f"{package}.{name}"


def test_the_readme_says_what_each_reader_looks_for():
    """Those of recommenders and of clusters have their lines; what there is not is said."""
    text = (ROOT / "README.md").read_text()
    diff = text[: text.index("## ")].partition("```diff\n")[2].partition("```")[0]
    assert [line[0] for line in diff.splitlines()] == ["-", "+"]
    script, embedding = blocks(ROOT / "README.md", "python")
    assert len(embedding.text.splitlines()) <= 6
    assert "DistributedEmbedding" in embedding.text and "DistributedEmbedding" not in script.text
    for part in (
        "(examples/ctr_dnn.py)",
        "(examples/two_tower.py)",
        "`tf-config plan`",
        "\ntf-config render slurm ",
        "\nsbatch ",
        "\n## What it runs on\n",
        "\n## What this does not do\n",
    ):
        assert part in text, part


def test_the_readme_is_short_and_the_pages_name_no_machine():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
    for page in PAGES:
        assert not re.search(r"/work/|/root/|/home/\w", page.read_text()), page


@pytest.mark.parametrize(
    "cluster",
    [
        "--workers 2",
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("--workers 2 --ps 1", marks=pytest.mark.slow),
    ],
)
def test_the_script_of_the_readme(cluster, forked):
    script = forked.script(program(ROOT / "README.md"), "train.py")
    if cluster:
        code, output = forked.run(*cluster.split(), script)
    else:
        code, output = forked.finish(
            forked.popen([forked.python, str(script)]), timeout=HANGING_SECONDS
        )
    assert code == 0, output
    said = re.findall(r"^.*strategies: .* 2 workers x 1 replica \(CPU\); .*$", output, re.M)
    assert len(said) == bool(cluster), output
    (accuracy,) = re.findall(r"accuracy: (0\.\d{3})$", output, re.M)
    assert float(accuracy) > 0.9


def test_the_images_are_pictures():
    for path in Path(ROOT / "docs" / "images").iterdir():
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg", path


def test_the_messages_of_troubleshooting_are_those_of_the_code():
    """The longest part of each that does not change from case to case is in some text of it."""
    page = ROOT / "docs" / "troubleshooting.md"
    files = [*ROOT.glob("strategies/**/*.py"), *ROOT.glob("tf_config/**/*.py")]
    texts = "\n".join(text for path in files for text in texts_of(ast.parse(path.read_text())))
    messages = re.findall(r"^\| `([^|]*)` \|", page.read_text(), re.M)
    assert len(messages) > 60
    for message in messages:
        for each in message.split("`, `"):
            parts = re.split(r"\.\.\.|Received:|TF_CONFIG|mode=\.", each)
            assert max((part.strip(" .") for part in parts), key=len) in texts, each


def texts_of(tree):
    """Yields the constant texts of a program; one with something put into it is several."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[.\d]*[dsfg]", "\n", node.value)
