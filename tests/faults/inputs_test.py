"""Any input gives a result or this package's error, never a traceback from inside."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.faults.inputs import TARGETS, is_answered
from tf_config import ClusterConfigError
from tf_config.cli import plan

ROOT = Path(__file__).resolve().parent.parent.parent
SLOW = ("arguments", "plan files")


@pytest.mark.parametrize("name", TARGETS)
def test_any_input_is_read_or_refused(name):
    inputs, function = TARGETS[name]

    @settings(max_examples=40 if name in SLOW else 120, deadline=None)
    @given(inputs)
    def check(value):
        is_answered(function, value)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_are_of_both_kinds(name):
    """Or what is tried would be far from what is meant."""
    inputs, function = TARGETS[name]
    seen = set()

    class Seen(Exception):
        """Both kinds were."""

    @settings(
        max_examples=500, deadline=None, database=None, derandomize=True, phases=[Phase.generate]
    )
    @given(inputs)
    def look(value):
        seen.add(is_answered(function, value))
        if len(seen) == 2:
            raise Seen

    with pytest.raises(Seen):
        look()


LARGE = {
    "a range": "parse_node_list('n[1-999999999]')",
    "ranges in one bracket": "parse_node_list('n[' + ','.join(['1-65536'] * 9000) + ']')",
    "many names": "parse_node_list(','.join(['n[1-65536]'] * 9000))",
    "brackets behind each other": "parse_node_list('[1-99]' * 30)",
    "tasks of a node": "resolve({'SLURM_JOB_ID': '1', 'SLURM_PROCID': '0', 'SLURM_NODELIST': 'a', "
    "'SLURM_TASKS_PER_NODE': '9999999999'})",
    "nodes with a task": "parse_tasks_per_node(','.join(['1(x65536)'] * 9000))",
    "slots": "parse_hosts(','.join(f'h{n}:65536' for n in range(9000)))",
    "workers": "Roles(9999999999)",
    "processes": "Roles.of(9999999999)",
    "an index": "ClusterSpec.from_dict({'worker': {str(10**8): 'a:1'}}).to_dict()",
    "a string of JSON": "TFConfig.from_json('[' * 10**7)",
    "rows": "str(plan_capacity({'a': {'rows': '1e300', 'width': 10**9, 'zipf': 1.0}}, batch=1e9))",
}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_large_takes_no_memory(name):
    code = (
        "from tf_config import *\nfrom tf_config.environments.node_list import *\n"
        "from tf_config.hosts import *\n"
        "from tf_config.roles import Roles\nfrom tf_config.environments import resolve\n"
        "from tf_config.capacity import plan_capacity\n"
        f"try:\n    {LARGE[name]}\n"
        "except ClusterConfigError as error:\n    print('refused', error)\n"
    )

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, preexec_fn=limit, timeout=30,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-500:]
    if name not in ("an index", "rows"):
        assert done.stdout.startswith("refused")


def test_a_plan_file_of_many_brackets_is_refused_at_once(tmp_path):
    (tmp_path / "plan.yaml").write_text("[" * 3000)
    with pytest.raises(ClusterConfigError, match="32 nested brackets. Received: 3000 in"):
        plan._read(tmp_path / "plan.yaml")


@given(st.sampled_from(sorted(TARGETS)))
@settings(max_examples=1)
def test_an_error_from_inside_would_be_seen(name):
    with pytest.raises(KeyError):
        is_answered({}.__getitem__, name)
