"""What the tests of the examples share: the examples as modules, and small click logs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from absl import flags

from tests.support.job import HANGING_SECONDS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example() -> Iterator[Callable[..., ModuleType]]:
    """Loads an example by its name, with flags; they are forgotten after the test."""
    before = set(flags.FLAGS)

    def load(name: str, *given: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        flags.FLAGS([name, *given])
        return module

    yield load
    for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)
    flags.FLAGS.unparse_flags()


@pytest.fixture
def click_logs(example, tmp_path: Path) -> list[str]:
    """Flags that name click logs: 20,000 rows in three files, 5,000 to test on."""
    data = example("criteo_data", "--directory=unused")
    data.write(tmp_path / "logs", "train", rows=20_000, files=3, seed=1)
    data.write(tmp_path / "logs", "test", rows=5_000, files=2, seed=1)
    return [f"--train={tmp_path}/logs/train-*", f"--test={tmp_path}/logs/test-*"]


@pytest.fixture
def run(forked) -> Callable[..., str]:
    """Runs an example in one process, or under `tf-config run` with arguments of its."""

    def run(name: str, *given: str, under: tuple[str, ...] = (), fails: bool = False) -> str:
        script = str(EXAMPLES / f"{name}.py")
        if under:
            code, output = forked.run("--start-timeout", "60", *under, script, *given)
        else:
            process = forked.popen([forked.python, script, *given])
            output, code = process.communicate(timeout=HANGING_SECONDS)[0], process.returncode
        assert (code != 0) == fails, output
        return output

    return run
