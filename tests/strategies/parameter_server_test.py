"""ParameterServerStrategy on real clusters; the checks stand in tests/distributed."""

import json
import math
import signal
import subprocess
import time

import pytest

from strategies.ps.placement import Placement, Slice
from tests.support.check_jobs import PROGRAMS, checks_of
from tf_config.builder import free_ports

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("keras", "workers", "ps", "options", "exchange"),
    [
        pytest.param("keras", 3, 1, {"placement": "hash"}, "in_memory", marks=slow),
        pytest.param("keras", 2, 2, {"num_replicas": 2}, "in_memory", marks=slow),
        pytest.param("tf_keras", 2, 2, {"min_slice_size": None}, "on_servers", marks=slow),
    ],
    indirect=["exchange"],
)
@pytest.mark.parametrize("check", checks_of("servers_parity.py"))
def test_workers_in_step_follow_one_process(
    run_check, exchange, check, keras, workers, ps, options
):
    run_check(check, keras, json.dumps(options), workers=workers, ps=ps)


FIRST = ["a_dense_model_with_momentum", "an_embedding_with_sgd"]


@pytest.mark.parametrize(
    "exchange", ["in_memory", pytest.param("on_servers", marks=slow)], indirect=True
)
@pytest.mark.parametrize("check", checks_of("servers_parity.py", only=FIRST, slow=FIRST[1:]))
def test_servers_in_step_do_what_one_process_does_with_momentum(run_check, exchange, check):
    run_check(check, "keras", "{}", ps=2)


@pytest.mark.parametrize(
    ("exchange", "workers"),
    [("in_memory", 2), ("on_servers", 3)],
    indirect=["exchange"],
)
@slow  # test_workers_of_different_epochs_save_and_end_together is of those not in step
def test_the_other_workers_go_on_when_one_ends(train, exchange, workers):
    train("servers_early.py", workers=workers, ps=2, timeout=200)


@slow
@pytest.mark.parametrize(
    "mode", ["async", *(pytest.param(mode, marks=slow) for mode in ("half_async", "geo"))]
)
def test_workers_of_different_epochs_save_and_end_together(train, mode):
    train("servers_epochs.py", mode, workers=2, ps=1, timeout=200)


@slow
def test_one_thread_of_tensorflow_is_enough(forked):
    arguments = "--workers", 2, "--ps", 1, "--threads-per-worker", 1, "--step-timeout", 100
    code, output = forked.run(*arguments, PROGRAMS / "one_thread.py", timeout=200)
    assert code == 0 and output.count("] loss ") == 2, output


@slow
def test_a_chief_is_the_first_worker(forked):
    script = PROGRAMS / "servers_early.py"
    code, output = forked.run("--chief", "--workers", 1, "--ps", 2, script, timeout=200)
    assert code == 0 and "[chief 0] passed" in output and "[worker 0] passed" in output, output


# As a script of TensorFlow's coordinator begins.
BY_ROLE = """
import sys
import tensorflow as tf
import strategies

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    task = {"job_name": resolver.task_type, "task_index": resolver.task_id}
    tf.distribute.Server(resolver.cluster_spec(), **task).join()
strategies.ParameterServerStrategy(resolver, mode=sys.argv[1], start_timeout=15)
print("the chief is done", flush=True)
"""


def test_an_error_of_a_server_keeps_its_words():
    """TensorFlow would look for the names of operations in them, for minutes."""
    import tensorflow as tf

    from strategies.compat.tensorflow import Session

    words = "no name of an operation. " * 8000
    with tf.Graph().as_default() as graph:
        check = tf.raw_ops.Assert(condition=tf.constant(False), data=[words])
        with Session(graph=graph) as session, pytest.raises(tf.errors.OpError) as raised:
            session.run(check)
    assert words in raised.value.message
    assert "Graph execution error" not in raised.value.message


def test_a_coordinator_and_a_partitioner_are_refused_with_what_stands_for_them():
    import tensorflow as tf

    import strategies

    with pytest.raises(RuntimeError, match="Call the step directly instead of"):
        tf.distribute.coordinator.ClusterCoordinator(
            object.__new__(strategies.ParameterServerStrategy)
        )
    with pytest.raises(TypeError, match="'variable_partitioner'. Use min_slice_size=N"):
        strategies.ParameterServerStrategy(variable_partitioner=None)


@slow
def test_a_worker_that_only_serves_is_named(forked):
    options = "--chief", "--workers", 1, "--ps", 1, forked.script(BY_ROLE)
    code, output = forked.run(*options, "sync", timeout=100)
    expected = "Received: nothing from worker 0. Workers and a chief must run the same script"
    assert code != 0 and expected in output, output
    process = forked.start(*options, "async")
    try:
        output, _ = process.communicate(timeout=70)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate(timeout=30)
    assert "worker 0 never connected. Workers and a chief" in output, output
    assert (
        "[ps 0] ps 0 keeps serving, because worker 0 never connected. Workers and a chief" in output
    ), output


@slow
@pytest.mark.parametrize("check", checks_of("servers_ways.py"))
def test_what_a_step_may_be_and_what_is_refused(run_check, check):
    run_check(check, ps=2)


@slow
@pytest.mark.parametrize(
    ("keras", "mode"),
    [("keras", "sync"), ("keras", "half_async"), ("tf_keras", "async"), ("tf_keras", "geo")],
)
@pytest.mark.parametrize("check", checks_of("servers_optimizers.py"))
def test_every_optimizer_works_or_is_refused_by_name(run_check, check, keras, mode):
    run_check(check, keras, mode, workers=1, ps=1)


@pytest.mark.parametrize(
    ("mode", "steps", "workers", "ps", "options"),
    [
        (
            "async",
            200,
            2,
            2,
            {"max_merge": 3, "send_queue_size": 5, "pull_every": 2, "compression": "fp16"},
        ),  # fmt: skip
        pytest.param("half_async", 50, 2, 2, {}, marks=slow),
        ("geo", 12, 2, 2, {"geo_steps": 3}),
        pytest.param("async", 3334, 3, 2, {}, marks=slow),
        pytest.param(
            "half_async", 50, 2, 1, {"num_replicas": 2, "compression": "fp16"}, marks=slow
        ),
        pytest.param("geo", 12, 3, 1, {"geo_steps": 2}, marks=slow),
    ],
)
@pytest.mark.parametrize("check", checks_of("servers_counting.py"))
def test_no_change_is_lost_and_staleness_is_bounded(
    run_check, check, mode, steps, workers, ps, options
):
    run_check(check, mode, steps, json.dumps(options), workers=workers, ps=ps)


@pytest.mark.parametrize(
    ("keras", "mode", "workers", "options"),
    [
        ("keras", "async", 2, {}),
        pytest.param("keras", "geo", 2, {}, marks=slow),
        pytest.param("tf_keras", "half_async", 2, {"num_replicas": 2}, marks=slow),
        pytest.param("keras", "sync", 2, {"num_replicas": 2}, marks=slow),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "servers_changes.py",
        slow=[
            "a_step_without_examples_does_not_train_a_workers_own_copy",
            "a_setting_that_changes_is_heeded",
            "models_in_turn_are_all_exchanged",
            "what_another_step_brought_stays",
            "a_changed_variable_is_not_read_before_the_step_is_complete",
            "muon_decays_what_the_servers_have",
            "layers_that_are_excluded_do_not_decay",
        ],
    ),
)
def test_what_changes_a_variable_and_what_does_not(run_check, check, keras, mode, workers, options):
    run_check(check, keras, mode, json.dumps(options), workers=workers, ps=2)


@pytest.mark.parametrize(
    ("keras", "mode", "workers", "ps", "options"),
    [
        ("keras", "async", 2, 2, {}),
        pytest.param("keras", "async", 3, 1, {"pull_every": 3, "max_merge": 2}, marks=slow),
        pytest.param(
            "tf_keras", "half_async", 2, 2, {"num_replicas": 2, "min_slice_size": None}, marks=slow
        ),
        pytest.param("keras", "sync", 3, 2, {"num_replicas": 2}, marks=slow),
    ],
)
@pytest.mark.parametrize(
    "check", checks_of("servers_rows.py", slow=["a_value_that_is_given_is_pulled_as_a_whole"])
)
def test_only_rows_that_change_are_pulled(run_check, check, keras, mode, workers, ps, options):
    run_check(check, keras, mode, json.dumps(options), workers=workers, ps=ps)


@pytest.mark.parametrize(
    ("keras", "mode", "replicas", "ps"),
    [
        ("keras", "async", 1, 2),
        pytest.param("keras", "half_async", 1, 1, marks=slow),
        pytest.param("tf_keras", "geo", 2, 1, marks=slow),
        pytest.param("tf_keras", "sync", 1, 4, marks=slow),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "servers_evaluation.py",
        slow=[
            "validation_is_of_all_examples_whenever_a_worker_comes_to_it",
            "a_loop_of_ones_own_takes_the_workers_part",
            "what_is_a_workers_alone_is_said",
            "nobody_waits_for_a_worker_that_does_something_else",
            "nobody_waits_for_a_worker_that_has_ended",
            "one_example_is_evaluated_on_every_worker",
        ],
    ),
)
def test_all_examples_are_evaluated_on_every_worker(run_check, check, keras, mode, replicas, ps):
    run_check(check, keras, mode, replicas, ps=ps)


@slow
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_files_are_of_one_moment_and_read_by_any_number_of_servers(train, job, mode):
    train("servers_checkpoint.py", "write", mode, workers=2, ps=2)
    train("servers_checkpoint.py", "read", job.directory, "half_async", workers=2, ps=1)
    train("servers_checkpoint.py", "read", job.directory, "hash", "async", workers=1, ps=2)
    train("servers_checkpoint.py", "alone", job.directory, workers=1)


class Cluster:
    """Servers and workers that are started one by one, as a scheduler does."""

    def __init__(self, job, script, workers, ps):
        self._job = job
        self._script = script
        ports = free_ports(workers + ps, "127.0.0.1")
        self._cluster = {
            "worker": [f"127.0.0.1:{port}" for port in ports[:workers]],
            "ps": [f"127.0.0.1:{port}" for port in ports[workers:]],
        }

    def start(self, kind, index, *arguments):
        task = {"cluster": self._cluster, "task": {"type": kind, "index": index}}
        self._job.environ["TF_CONFIG"] = json.dumps(task)
        what = ["-m", "strategies.serve"] if kind == "ps" else [str(self._script)]
        return self._job.popen([self._job.python, *what, *map(str, arguments)])


# A step takes 1 from the weight, and its number goes to a file, for the test to see.
STEPS = """
import os, sys, time
import tensorflow as tf
import strategies

strategy = strategies.from_tf_config(mode={mode!r}, **{options})
with strategy.scope():
    weight = tf.Variable(tf.zeros([40]), name="weight")
extended = strategy.extended

@tf.function
def step():
    strategy.run(lambda: weight.assign_sub(tf.ones([40])))

me = extended.workers.rank
first = int(weight.numpy()[0])
open(f"first{{me}}-{{os.getpid()}}", "w").write(str(first))
number = 0
while not os.path.exists("stop"):
    step()
    number += 1
    open(f"worker{{me}}.new", "w").write(str(number))
    os.replace(f"worker{{me}}.new", f"worker{{me}}")
    time.sleep(0.02)
extended.update_mode.drain()
print("did", number, "found", int(-extended.registry.read([weight.remote])[0][0]))
"""


def steps_of(job, worker):
    path = job.directory / f"worker{worker}"
    return int(path.read_text()) if path.exists() else 0


def steps_cluster(job, mode, workers=2, ps=2, **options):
    script = job.script(STEPS.format(mode=mode, options=options))
    cluster = Cluster(job, script, workers, ps)
    servers = [cluster.start("ps", number) for number in range(ps)]
    return cluster, servers, [cluster.start("worker", number) for number in range(workers)]


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        pytest.param("async", {}, marks=slow),
        pytest.param("half_async", {}, marks=slow),
        pytest.param("geo", {"geo_steps": 2}, marks=slow),
    ],
)
def test_a_worker_is_killed_and_comes_again(job, mode, options):
    cluster, servers, workers = steps_cluster(job, mode, **options)
    job.wait_for(lambda: steps_of(job, 0) > 5 and steps_of(job, 1) > 5, within=90)
    workers[1].kill()
    workers[1].wait()
    seen = steps_of(job, 0)
    job.wait_for(lambda: steps_of(job, 0) > seen + 10, within=30)
    (job.directory / "worker1").unlink()
    again = cluster.start("worker", 1)
    job.wait_for(lambda: steps_of(job, 1) > 5, within=90)
    found = int((job.directory / f"first1-{again.pid}").read_text())
    assert found < -5, "it did not find what the others had trained"
    (job.directory / "stop").touch()
    for process in (workers[0], again, *servers):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    job.assert_nothing_left()


def test_a_server_is_killed(forked):
    _, servers, workers = steps_cluster(forked, "async")
    forked.wait_for(lambda: steps_of(forked, 0) > 5 and steps_of(forked, 1) > 5, within=90)
    servers[1].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    for worker in workers:
        output, _ = worker.communicate(timeout=30)
        assert worker.returncode != 0
        assert "ps 1 (127.0.0.1:" in output and "is gone: " in output, output
        assert not any(f"gone: {late}" in output for late in ("its host has", "no answer in"))
    assert time.monotonic() - killed < 20
    servers[0].terminate()
    servers[0].wait(10)
    forked.assert_nothing_left()


@slow
def test_a_server_is_paused(job):
    _, servers, workers = steps_cluster(job, "half_async")
    job.wait_for(lambda: steps_of(job, 0) > 5 and steps_of(job, 1) > 5, within=90)
    servers[0].send_signal(signal.SIGSTOP)
    time.sleep(20)
    before = steps_of(job, 0)
    servers[0].send_signal(signal.SIGCONT)
    job.wait_for(lambda: steps_of(job, 0) > before + 5, within=60)
    (job.directory / "stop").touch()
    counts = []
    for worker in workers:
        output, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0, output
        words = output.split()
        counts.append((int(words[words.index("did") + 1]), int(words[words.index("found") + 1])))
    assert max(found for _, found in counts) == sum(did for did, _ in counts)


def test_ctrl_c_ends_all(forked):
    forked.script(STEPS.format(mode="async", options={}), "steps.py")
    process = forked.start("--workers", 1, "--ps", 1, forked.directory / "steps.py")
    forked.wait_for(lambda: steps_of(forked, 0) > 2, within=90)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGINT
    forked.assert_nothing_left()


def test_without_servers_it_says_how_to_get_them(forked):
    script = forked.script("import strategies; strategies.ParameterServerStrategy()")
    process = forked.popen([forked.python, str(script)])
    output, _ = process.communicate(timeout=60)
    assert "Received: no TF_CONFIG" in output and "tf-config run --workers 2 --ps 1" in output


def test_a_server_is_a_ps_task(forked):
    process = forked.popen([forked.python, "-m", "strategies.serve"])
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "must be a ps task. Received: no TF_CONFIG" in output


def loads(placement, shapes, slot_variables=2):
    """Returns the bytes on each server; slot variables are created after all variables."""
    placed = [(placement.place(f"{n}", shape), shape) for n, shape in enumerate(shapes)]
    for slices, shape in placed * slot_variables:
        placement.add_load(slices, shape, 4)
    return placement._bytes


@pytest.mark.parametrize("servers", [2, 3, 4])
@pytest.mark.parametrize(
    "shapes",
    [
        pytest.param([(100, 10)] * 30, id="alike"),
        pytest.param([(64, 64), (64,)] * 6, id="kernels and biases"),
        pytest.param([(3, 3, 8, 8), (8,), (8,), (8,)] * 4 + [(900, 10), (10,)], id="pictures"),
        pytest.param([(16, 32), (32,), (32, 32), (32,), (32, 1), (1,)], id="of one size"),
    ],
)
def test_no_server_holds_more_than_the_mean_and_one_slice(shapes, servers):
    sizes = [4 * 3 * math.prod(shape) for shape in shapes]
    placed = loads(Placement(servers), shapes)
    assert sum(placed) == sum(sizes)
    assert max(placed) <= sum(sizes) / servers + max(sizes)
    assert placed == loads(Placement(servers), shapes)


def test_kernels_and_biases_of_two_servers_are_balanced():
    shapes = [(64, 64), (64,)] * 6
    turns, sizes = (loads(Placement(2, method), shapes) for method in ("round_robin", "size"))
    assert max(turns) > 1.9 * sum(turns) / 2
    assert max(sizes) < 1.02 * sum(sizes) / 2


def test_slot_variables_count():
    placement = Placement(2)
    first = placement.place("kernel", (10,))
    placement.add_load(first, (10,), 4)
    assert [placement.place(name, (9,))[0].server for name in "abcd"] == [1, 1, 1, 0]


def test_the_largest_slice_goes_to_the_emptiest_server():
    placement = Placement(3, min_slice_size=2)
    placement.add_load([Slice(0, 0, 1)], (1, 9), 4)
    slices = placement.place("kernel", (5, 1))
    assert [(part.server, part.stop - part.start) for part in slices] == [(1, 3), (2, 2)]


def test_the_hash_of_a_name_is_the_same_in_every_process():
    places = [Placement(5, "hash").place(name, (3,))[0].server for name in ("a", "b", "kernel")]
    assert places == [2, 1, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "spread"}, "Received: 'spread'"),
        ({"min_slice_size": 0}, "Received: 0"),
        ({"min_slice_size": True}, "Received: True"),
    ],
)
def test_a_wrong_placement_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Placement(2, **arguments)


def test_a_function_that_names_no_server_is_refused():
    with pytest.raises(ValueError, match="Received: 2 for 'kernel'"):
        Placement(2, lambda name, shape, servers: servers).place("kernel", (3,))
