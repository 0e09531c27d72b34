"""Imports run one way, and Horovod and private TensorFlow have one door each."""

import ast
import functools
import importlib.metadata
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import strategies
import tf_config

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted([*ROOT.glob("tf_config/**/*.py"), *ROOT.glob("strategies/**/*.py")])
# From the bottom up: a file imports from its own layer or a lower one.
LAYERS = [
    "tf_config",
    "strategies.checks",
    "strategies.assertions",
    "strategies.partitioning",
    "strategies.gpus",
    "strategies._tensorflow",
    "strategies.frames",
    "strategies._keras",
    "strategies.file_claims",
    "strategies.collectives.base",
    "strategies.collectives.single_worker",
    "strategies.collectives.dtypes",
    "strategies.collectives.startup",
    "strategies.collectives.health",
    "strategies.collectives",
    "strategies.durable_files",
    "strategies.reduction",
    "strategies.variables",
    "strategies.data",
    "strategies.core",
    "strategies.equality",
    "strategies.loss_scaling",
    "strategies.mirrored",
    "strategies.central_storage",
    "strategies.multi_worker",
    "strategies.ps",
    "strategies.ps.modes",
    "strategies.parameter_server",
    "strategies.factory",
    "strategies.serve",
    "strategies.embedding.config",
    "strategies.embedding.inputs",
    "strategies.embedding.shard",
    "strategies.embedding.placement_report",
    "strategies.embedding.lookup",
    "strategies.embedding.checkpoint",
    "strategies.embedding.tables",
    "strategies.embedding.placement",
    "strategies.embedding.validation",
    "strategies.embedding.layer",
    "strategies.embedding.prefetch",
    "strategies.embedding",
    "strategies.files",
    "strategies.drawing",
    "strategies.callbacks",
    "strategies",
]


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


def layer(module):
    """Returns the place of the longest name in LAYERS that a module's begins with."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in LAYERS and (name != "strategies" or module == "strategies"):
            return LAYERS.index(name)
    raise AssertionError(f"{module} is in no layer; add it to LAYERS.")


MODULES = set(map(module_of, FILES))


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_run_one_way(path):
    own = layer(module_of(path))
    for module in imports(path):
        if module.split(".")[0] in ("strategies", "tf_config"):
            assert layer(module) <= own, f"{path} imports {module}, a higher layer"


def test_no_module_imports_itself_by_way_of_others():
    graph = {module_of(path): set(imports(path)) & MODULES for path in FILES}
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("prefix", "door"),
    [
        ("horovod", "strategies/collectives/horovod.py"),
        ("tensorflow.python", "strategies/_tensorflow.py"),
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
                "strategies/_keras.py",
                "strategies/frames.py",
                "strategies/variables/sparse_variable.py",
            },
        ),
        (
            {"f_back", "_getframe"},
            {"strategies/frames.py", "strategies/variables/sparse_variable.py"},
        ),
        ({"_current_frames"}, {"strategies/collectives/health/stack.py"}),
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
def test_no_assert_and_no_long_file(path):
    assert len(path.read_text().splitlines()) <= 500
    assert not any(isinstance(node, ast.Assert) for node in nodes(path))
