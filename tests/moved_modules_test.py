"""Modules of version 0.1.0 can be imported by the names that they had."""

import importlib
import subprocess
import sys

import pytest

import strategies
import strategies.moved_modules
import tf_config.moved_modules

MOVED = {**strategies.moved_modules.MOVED, **tf_config.moved_modules.MOVED}


@pytest.mark.parametrize("old", MOVED)
def test_the_old_name_gives_the_module_of_today(old):
    module = importlib.import_module(old)
    if MOVED[old]:
        assert module is importlib.import_module(MOVED[old])
        assert module.__name__ == module.__spec__.name == MOVED[old]


def test_modules_that_are_packages_today_give_what_they_gave():
    from strategies.files import own_path, writing
    from tf_config.doctor import PROBES, Finding, Line, Probe, examine, exit_code, within
    from tf_config.horovod import RANK_VARIABLE, defaults, place, rendezvous_at

    assert (own_path, writing) == (strategies.own_path, strategies.writing)
    assert all(map(callable, (Finding, Line, Probe, examine, exit_code, within)))
    assert all(map(callable, (defaults, place, rendezvous_at)))
    assert PROBES
    assert RANK_VARIABLE == "HOROVOD_RANK"


@pytest.mark.processes
@pytest.mark.parametrize(
    "statement",
    [
        "from tf_config.output import Console",
        "from tf_config import output; output.Console",
        "import tf_config.output; tf_config.output.Console",
        "import tf_config.rendezvous.meet; tf_config.rendezvous.meet.rendezvous",
    ],
)
def test_each_import_statement_finds_it(statement):
    subprocess.run([sys.executable, "-c", statement], check=True)


def test_what_never_was_is_not_there():
    with pytest.raises(ModuleNotFoundError, match="tf_config.no_such_module"):
        importlib.import_module("tf_config.no_such_module")
