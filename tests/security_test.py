"""What the packages never do: run what they read, or build a line of the shell."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted([*ROOT.glob("tf_config/**/*.py"), *ROOT.glob("strategies/**/*.py")])
# Each can run code that stands in what it reads.
MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
CALLS = {"eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"}
ARGUMENTS = {"shell", "allow_pickle"}


def findings(tree):
    """Yields what a file does that none may."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (name for name in names if name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            yield from {(node.module or "").split(".")[0]} & MODULES
        elif isinstance(node, ast.Call):
            yield from {ast.unparse(node.func)} & CALLS
            for given in node.keywords:
                is_off = isinstance(given.value, ast.Constant) and given.value.value is False
                if given.arg in ARGUMENTS and not is_off:
                    yield f"{given.arg}="


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_runs_what_it_reads(path):
    assert not set(findings(ast.parse(path.read_text())))


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from cloudpickle import loads",
        "subprocess.run(text, shell=True)",
        "np.load(path, allow_pickle=given)",
        "eval(text)",
        "yaml.load(text)",
    ],
)
def test_it_would_be_seen(text):
    assert set(findings(ast.parse(text)))
