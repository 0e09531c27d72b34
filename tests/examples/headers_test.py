"""Every example has commands and their output in its header, and prints that output."""

import ast
import importlib.util
import re

import pytest

from tests.support.documents import ROOT
from tests.support.printed import missing

EXAMPLES = ROOT / "examples"
# PaddlePaddle Fluid runs on no Python of today, and PyTorch is not installed with this package.
NOT_RUN = "coming_from/fluid_before.py", "coming_from/ddp_before.py"
NEEDS = {"bert_lora.py": "keras_hub"}
QUICK = "cifar_data.py", "criteo_data.py", "custom_loop.py"


def name_of(path):
    return str(path.relative_to(EXAMPLES))


def marks_of(path):
    marks = [] if path.name in QUICK else [pytest.mark.slow]
    module = NEEDS.get(path.name)
    if module is not None:
        is_missing = importlib.util.find_spec(module) is None
        marks.append(pytest.mark.skipif(is_missing, reason=f"not installed: {module}"))
    return marks


FILES = [path for path in sorted(EXAMPLES.rglob("*.py")) if name_of(path) not in NOT_RUN]
CASES = [pytest.param(path, id=name_of(path), marks=marks_of(path)) for path in FILES]


def commands(path):
    """Returns the commands of a header, each with the lines that it prints."""
    header = ast.get_docstring(ast.parse(path.read_text())).replace("\\\n", "")
    found = []
    for line in re.findall("^    (.*)", header, re.M):
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


@pytest.fixture
def clone(shell, forked):
    """The shell, in a directory that has the examples as a clone has them."""
    (forked.directory / "examples").symlink_to(EXAMPLES)
    return shell


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_example_shows_its_output(path):
    assert any(lines for _, lines in commands(path))


@pytest.mark.parametrize("path", CASES)
def test_an_example_prints_what_its_header_shows(path, clone):
    for command, lines in commands(path):
        output = clone(command)
        assert not missing(lines, output), output


@pytest.mark.slow
@pytest.mark.parametrize("path", CASES)
def test_an_example_prints_the_same_on_one_worker(path, clone):
    ran = False
    for command, lines in commands(path):
        alone = re.sub(r"tf-config run (--\S+ \d+ )*", "python ", command)
        output = clone(alone)
        if alone != command:
            ran = True
            expected = [
                re.sub(
                    r"equal to the bit on all \d+ workers, ", "", line.replace("[worker 0] ", "")
                )
                for line in lines
            ]
            assert not missing(expected, output), output
    if not ran:
        pytest.skip("It is not one for several workers.")


@pytest.mark.parametrize("name", NOT_RUN)
def test_a_script_that_is_not_run_has_the_syntax_of_python(name):
    path = EXAMPLES / name
    compile(path.read_text(), path, "exec")
