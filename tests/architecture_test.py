"""Imports run one way, and Horovod and private TensorFlow have one door each."""

import ast
import functools
import importlib.metadata
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import strategies
import tf_config

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted([*ROOT.glob("tf_config/**/*.py"), *ROOT.glob("strategies/**/*.py")])
# The packages of `strategies`, and the others that each may import. Collectives and diagnostics
# need each other: workers are watched while they wait, and the watchdog itself exchanges values.
MAY_IMPORT = {
    "utils": "",
    "compat": "",
    "profiling": "compat utils files",
    "collectives": "compat utils diagnostics",
    "diagnostics": "compat utils collectives profiling",
    "files": "compat collectives diagnostics",
    "reduction": "compat utils collectives",
    "variables": "compat utils collectives reduction",
    "data": "compat utils profiling collectives diagnostics files",
    "core": "compat utils collectives diagnostics reduction variables data",
    "ps": "compat utils profiling collectives diagnostics files reduction variables data core",
    "embedding": (
        "compat utils profiling collectives diagnostics files reduction variables data core ps"
    ),
    "live": "compat utils collectives diagnostics files variables embedding",
    "callbacks": "compat utils profiling collectives diagnostics files variables data embedding",
}
# Modules beside the packages that a package imports.
IMPORTED_BY_PACKAGES = {"equality": {"callbacks"}}


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def nodes(path):
    """Returns the nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


@functools.cache
def imports(path):
    """Returns the modules that a file imports, at its top or inside a function."""
    found = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found += names & MODULES or {node.module}
    return found


def package_of(module):
    """Returns the package of `strategies` that a module is in; None for one beside the packages."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else None


MODULES = set(map(module_of, FILES))


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_packages_import_what_the_table_allows(path):
    own = package_of(module_of(path))
    for module in imports(path):
        root, *rest = module.split(".")
        if module_of(path).startswith("tf_config"):
            assert root != "strategies", f"{path} imports {module}"
        elif root == "strategies" and own is not None and package_of(module) != own:
            beside = own in IMPORTED_BY_PACKAGES.get(rest[0] if rest else "", ())
            allowed = package_of(module) in MAY_IMPORT[own].split() or beside
            assert allowed, f"{path} imports {module}; see MAY_IMPORT"


def test_no_module_imports_itself_by_way_of_others():
    graph = {module_of(path): set(imports(path)) & MODULES for path in FILES}
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("prefix", "door"),
    [
        ("horovod", "strategies/collectives/horovod.py"),
        ("tensorflow.python", "strategies/compat/tensorflow.py"),
    ],
)
def test_there_is_one_door(prefix, door):
    found = {
        str(path.relative_to(ROOT))
        for path in FILES
        for module in imports(path)
        if module == prefix or module.startswith(prefix + ".")
    }
    assert found == {door}


@pytest.mark.parametrize(
    ("attributes", "doors"),
    [
        (
            {"f_locals"},
            {
                "strategies/compat/keras.py",
                "strategies/compat/keras_losses.py",
                "strategies/compat/call_stack.py",
                "strategies/variables/row_variable.py",
            },
        ),
        (
            {"f_back", "_getframe"},
            {"strategies/compat/call_stack.py", "strategies/variables/row_variable.py"},
        ),
        ({"_current_frames"}, {"strategies/diagnostics/stack.py"}),
        ({"extract_stack", "walk_stack"}, set()),
    ],
)
def test_frames_are_looked_at_behind_a_door_alone_and_by_their_own_thread(attributes, doors):
    """Those of another thread change meanwhile, and the process may die of it."""
    found = {
        str(path.relative_to(ROOT))
        for path in FILES
        if any(isinstance(node, ast.Attribute) and node.attr in attributes for node in nodes(path))
    }
    assert found == doors


def test_the_version_is_that_of_the_distribution():
    assert strategies.__version__ == importlib.metadata.version("keras-strategies")


def test_the_public_names():
    assert sorted(strategies.__all__) == [
        "Admission",
        "CentralStorageStrategy",
        "DistributedEmbedding",
        "Eviction",
        "FeatureConfig",
        "LossScaleOptimizer",
        "MirroredStrategy",
        "MultiWorkerMirroredStrategy",
        "ParameterServerOptions",
        "ParameterServerStrategy",
        "ReductionOptions",
        "TableConfig",
        "barrier",
        "callbacks",
        "draw_placement",
        "export",
        "export_delta",
        "from_tf_config",
        "own_path",
        "plan_capacity",
        "prefetch_rows",
        "read_files",
        "verify_equal",
        "worker_rank",
        "writing",
    ]
    assert sorted(tf_config.__all__) == [
        "Address",
        "ClusterConfigError",
        "ClusterSpec",
        "TFConfig",
        "Task",
        "local_cluster",
    ]


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_there_is_no_assert(path):
    assert not any(isinstance(node, ast.Assert) for node in nodes(path))


def test_a_note_that_is_cited_is_written_once():
    """A note begins with a line that has its name alone; whatever else names it cites it."""
    texts = [path.read_text() for path in FILES]
    written = [name for text in texts for name in re.findall(r"^ *\[Note: ([^]]+)\]$", text, re.M)]
    cited = {
        " ".join(name.split()) for text in texts for name in re.findall(r"\[Note: ([^]]+)\]", text)
    }
    assert sorted(written) == sorted(cited)


# Tests of what no single module does.
OF_SEVERAL_MODULES = {
    "strategies": "devices earlier_files failure optimizers sessions tutorials",
    "strategies/embedding": "models penalty precision servers strategies traps",
    "strategies/ps": "failure",
    "tf_config/launcher": "growth",
}


def test_tests_stand_where_the_modules_stand_that_they_test():
    tests = [
        *ROOT.glob("tests/strategies/**/*_test.py"),
        *ROOT.glob("tests/tf_config/**/*_test.py"),
    ]
    assert tests
    for path in tests:
        module = path.relative_to(ROOT / "tests").with_name(path.stem.removesuffix("_test"))
        if module.name in OF_SEVERAL_MODULES.get(str(module.parent), "").split():
            continue
        # A package's own tests have its name.
        is_package = module.name == module.parent.name and (ROOT / module.parent).is_dir()
        assert is_package or (ROOT / module).with_suffix(".py").exists(), path
