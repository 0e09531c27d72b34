"""The notebook: its cells print what is stored in it. Jupyter is not needed.

What is stored is the standard output of a run by Jupyter's nbclient. Left out is the standard
error, which has what TensorFlow says of the machine as it is imported.
"""

import json
import re

import pytest

from tests.support.documents import ROOT
from tests.support.printed import missing

NOTEBOOK = json.loads((ROOT / "examples" / "two_workers.ipynb").read_text())
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def command_of(source):
    """Returns the shell's command that does what Jupyter does with a cell."""
    if source.startswith("%%writefile "):
        first, _, rest = source.partition("\n")
        name = first.removeprefix("%%writefile ")
        return f"echo Writing {name}; cat >{name} <<'END'\n{rest}\nEND"
    if source.startswith("!"):
        return source.removeprefix("!")
    return f"cat >cell.py <<'END'\n{source}\nEND\npython cell.py"


@pytest.mark.slow
def test_the_cells_print_what_is_stored(shell):
    for cell in CODE:
        output = shell(command_of("".join(cell["source"])))
        (stored,) = cell["outputs"]
        lines = re.sub(r"\d+s - \d+ms/step", "...", "".join(stored["text"])).splitlines()
        assert not missing([re.sub(r" {2,}", "...", line) for line in lines], output), output


def test_it_was_run_from_the_first_cell_to_the_last():
    assert [cell["execution_count"] for cell in CODE] == [1, 2, 3, 4]
