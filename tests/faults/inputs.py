"""Inputs of users and schedulers, right and wrong, and what each is given to."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from hypothesis import strategies as st

from tf_config import ClusterConfigError, TFConfig
from tf_config.address import Address
from tf_config.cli import main
from tf_config.cluster import Task
from tf_config.environments import ENVIRONMENTS, resolve
from tf_config.environments.node_list import parse_node_list, parse_tasks_per_node
from tf_config.hosts import parse_hostfile, parse_hosts
from tf_config.launcher.task_resolution import start_timeout
from tf_config.rendezvous import check_url

ANY = st.text(max_size=40)
# An argument or a variable of the environment ends for the system where a NUL is.
WORD = st.text(st.characters(exclude_characters="\0"), max_size=40)
NUMBERS = st.one_of(
    st.integers(-2, 70000).map(str),
    st.sampled_from(
        [
            "",
            "0",
            "00",
            "-1",
            "1e9",
            "nan",
            "inf",
            "1_0",
            "\u0663",
            "9" * 10,
            "9" * 5000,
            "0x1",
            " 1",
        ]
    ),
)
HOSTS = st.sampled_from(
    ["a", "b", "node-1", "-oProxyCommand=x", "a.b.", "::1", "[::1]", "[fe80::1%eth0]",
     "[fe80::1%$(x)]", "127.0.0.1", "localhost", "root@a", "-l@a", "a b", "", "\udcff", "\u00e4",
     "a" * 300]
)  # fmt: skip
HOST_PORTS = st.tuples(HOSTS, NUMBERS).map(":".join)
ADDRESSES = st.one_of(HOST_PORTS, ANY)


def pieces(alphabet: str, *words: str) -> st.SearchStrategy[str]:
    """Returns texts of some characters, words and numbers."""
    of_words = st.sampled_from(words) if words else st.nothing()
    piece = st.one_of(st.sampled_from(alphabet), of_words, NUMBERS)
    return st.lists(piece, max_size=14).map("".join)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY | ADDRESSES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY, inner, max_size=3),
    max_leaves=8,
)
JOBS = st.dictionaries(
    st.sampled_from(["worker", "ps", "chief", "evaluator", "master", ""]),
    st.lists(ADDRESSES, max_size=4) | st.dictionaries(NUMBERS, ADDRESSES, max_size=3) | JSON,
    max_size=4,
)
TASKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["worker", "ps", "chief", "x", None, 1]), "index": NUMBERS | JSON}
)
NEARLY = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}
CONFIGS = st.one_of(
    st.builds(
        lambda key, value: json.dumps({**NEARLY, key: value}),
        st.sampled_from(["cluster", "task", "environment", "rpc_layer", "x"]),
        JSON,
    ),
    st.fixed_dictionaries({"cluster": JOBS | JSON, "task": TASKS | JSON}).map(json.dumps),
    JSON.map(json.dumps),
    ANY,
    st.sampled_from(["[" * 100000, '{"cluster":' * 50000, '{"a": 1' + "0" * 5000 + "}"]),
)
NODES = pieces("an[]-,x \n", "n[1-3]", "n[1-999999999]", "a[1-9999]b[1-9999]", "[0001-2]")
COUNTS = pieces("(),x ", "4(x2)", "(x999999)", "9999999999")
ROWS = {"rows": "1e9", "width": 16}
PLAN = {"tables": {"a": ROWS}, "batch": 64}
PLANS = st.one_of(
    st.builds(
        lambda key, value: json.dumps({**PLAN, key: value}),
        st.sampled_from(["tables", "batch", "workers", "optimizer", "memory_gib", "x"]),
        NUMBERS | JSON,
    ),
    st.builds(
        lambda key, value: json.dumps({**PLAN, "tables": {"a": {**ROWS, key: value}}}),
        st.sampled_from(["rows", "width", "zipf", "hotness", "unique_ratio"]),
        NUMBERS | JSON | st.floats(),
    ),
    st.dictionaries(
        st.sampled_from(["tables", "batch", "workers", "servers", "optimizer", "memory_gib", "x"]),
        NUMBERS
        | JSON
        | st.dictionaries(
            ANY,
            st.dictionaries(
                st.sampled_from(["rows", "width", "hotness", "zipf", "unique_ratio", "y"]),
                NUMBERS | JSON,
            ),
            max_size=2,
        ),
    ).map(json.dumps),
    ANY,
    pieces("{}[]:-&*!#'\"\n\t ", "tables", "a: &a [*a]", "!!python/object:os.system", "[" * 3000),
)
VARIABLES = {
    "slurm": ["SLURM_JOB_ID", "SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_TASKS_PER_NODE",
              "SLURM_NODEID", "SLURM_DISTRIBUTION", "SLURM_DIST_PLANESIZE", "SLURM_STEP_ID",
              "SLURM_CPUS_PER_TASK"],
    "openmpi": ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                "PMIX_NAMESPACE"],
    "pmi": ["PMI_RANK", "PMI_SIZE"],
    "pytorch": ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"],
    "paddle": ["PADDLE_TRAINER_ENDPOINTS", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM",
               "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PORT", "PADDLE_PSERVERS", "TRAINING_ROLE",
               "POD_IP"],
    "kubernetes": ["KERAS_STRATEGIES_SERVICE", "KERAS_STRATEGIES_TASKS", "KERAS_STRATEGIES_PORT",
                   "KERAS_STRATEGIES_TASK_TYPE", "HOSTNAME", "JOB_COMPLETION_INDEX"],
}  # fmt: skip
VALUES = st.one_of(
    NUMBERS, WORD, HOSTS, NODES, COUNTS, HOST_PORTS,
    st.lists(HOST_PORTS | WORD, max_size=3).map(",".join),
    st.sampled_from(["worker=2,ps=1", "worker=99999", "train-worker-0", "cyclic", "plane=4",
                     "PSERVER", "TRAINER", "train"]),
)  # fmt: skip
ENVIRONMENT = st.sampled_from(sorted(VARIABLES)).flatmap(
    lambda name: st.tuples(
        st.just(name), st.dictionaries(st.sampled_from(VARIABLES[name]), VALUES, min_size=1)
    )
)
# Commands that start nothing and ask nobody.
COMMANDS = st.sampled_from(
    [["build"], ["show"], ["check"], ["plan"], ["run", "--dry-run"], ["render", "slurm"],
     ["render", "kubernetes", "--name", "a", "--image", "b"], ["split"], ["completion"], []]
)  # fmt: skip
WORDS = st.one_of(
    st.sampled_from(
        ["--workers", "--ps", "--chief", "--evaluator", "--hosts", "--hostfile", "--port", "--task",
         "--from", "--file", "--table", "--batch", "--env", "--ps-hosts", "--threads-per-worker",
         "--gpus-per-worker", "--interface", "--start-timeout", "--step-timeout", "--ssh", "--",
         "--quiet", "-", "--min-workers", "--shards", "--name", "--nodes", "--time", "a:2,b:2",
         "train.py", "slurm", "t:rows=1e9,width=16", "tf_config", "X=1", "--zipf", "--memory-gib",
         "/dev/null", "/proc/self/mem"]
    ),
    NUMBERS, WORD, HOSTS, NODES,
)  # fmt: skip
ARGUMENTS = st.tuples(COMMANDS, st.lists(WORDS, max_size=8)).map(lambda two: two[0] + two[1])


@contextlib.contextmanager
def _quiet(environ: dict[str, str]) -> Iterator[None]:
    streams = io.StringIO(), io.StringIO()
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with (
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
        mock.patch("sys.stdin", io.StringIO("a\n")),
        mock.patch.dict(os.environ, {**keep, **environ}, clear=True),
    ):
        yield


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """Keeps what a command writes, by `-o NAME` for instance, out of the directory of the tests."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        try:
            yield
        finally:
            os.chdir(here)


def run_command(argv: list[str]) -> None:
    """Runs `tf-config`, and raises where it does not end in success or in one line."""
    errors = io.StringIO()
    task = {"type": "worker", "index": 0}
    tf_config = json.dumps({"cluster": {"worker": ["a:1"]}, "task": task})
    with _elsewhere(), _quiet({"TF_CONFIG": tf_config}):
        with contextlib.redirect_stderr(errors):
            try:
                code = main(argv)
            except SystemExit as end:  # --help
                code = end.code
    lines = errors.getvalue().splitlines()
    if code == 2 and sum(line.startswith("tf-config: error: ") for line in lines) == 1:
        raise ClusterConfigError(lines[-1])
    if code != 0:
        raise RuntimeError(f"exit code {code}: {errors.getvalue()}")


def read_plan(text: str) -> None:
    """Runs `tf-config plan` on a file."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "plan.yaml")
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        run_command(["plan", str(path)])


def read_environment(given: tuple[str, dict[str, str]]) -> None:
    """Finds the cluster of a process in a scheduler's variables."""
    name, environ = given
    resolve(environ, name)
    ENVIRONMENTS[name].cores(environ)


# What is tried, by name: inputs, and what each of them is given to.
TARGETS: dict[str, tuple[st.SearchStrategy, Callable]] = {
    "TF_CONFIG": (CONFIGS, TFConfig.from_json),
    "addresses": (ADDRESSES, Address.parse),
    "tasks": (ANY | st.tuples(st.sampled_from(["worker", "ps", "chief"]), NUMBERS).map(":".join),
              Task.parse),
    "host lists": (pieces(":,@[] \t", "a", "b:2", "root@c:3", "[::1]", "-x", "a:65536"),
                   parse_hosts),
    "hostfiles": (pieces(": #\n=", "a", "slots", "max_slots", "max-slots", "b:2", "slots=4"),
                  parse_hostfile),
    "node lists": (NODES, parse_node_list),
    "tasks per node": (COUNTS, parse_tasks_per_node),
    "schedulers": (ENVIRONMENT, read_environment),
    "rendezvous": (st.builds("{}{}".format, st.sampled_from(["tcp://", "file://", "tcp:", ""]),
                             ADDRESSES | pieces(":/[]@%?#", "tcp", "file", "/a", "[::1")),
                   check_url),
    "start timeouts": (NUMBERS | ANY,
                       lambda text: start_timeout({"KERAS_STRATEGIES_START_TIMEOUT": text})),
    "arguments": (ARGUMENTS, run_command),
    "plan files": (PLANS, read_plan),
}  # fmt: skip


def is_answered(function: Callable, value: object) -> bool:
    """Returns whether an input gave a result; False where it gave this package's error.

    Raises:
      AssertionError: if the error says nothing, or several lines.
      Exception: any other one, which comes from inside.
    """
    try:
        function(value)
    except ClusterConfigError as error:
        if not str(error) or "\n" in str(error):
            raise AssertionError(f"no message of one line: {error}") from None
        return False
    return True
