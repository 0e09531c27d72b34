"""The strategy on real workers; the checks stand in tests/distributed."""

import re

import numpy as np
import pytest

import strategies
from strategies.multi_worker import start_timeout_seconds
from tests.support import hosts
from tests.support.check_jobs import PROGRAMS, checks_of
from tf_config import ClusterConfigError
from tf_config.launcher.settings import START_TIMEOUT_SECONDS

TWO = (
    '{"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]%s}, "task": {"type": "%s", "index": 0}}'
)


# What is slow runs in `make test-all`: the same checks in more combinations.
SLOW = pytest.mark.slow
BASIC = "parity.py", "training.py", "custom_loop.py"
LONG_EXCHANGES = [
    "exchanges_of_one_size_come_one_after_the_other",
    "a_dataset_asks_the_others_while_the_step_before_is_still_exchanging",
]
FIRST = ["a_dense_model_with_adam", "an_embedding_with_sgd"]


def some_of(*programs):
    """Returns the checks of programs, of which all but the first one are slow."""
    first = checks_of("parity.py", only=FIRST, slow=FIRST[1:])
    names = [each.id for each in first]
    rest = [each for each in checks_of(*programs, marks=SLOW) if each.id not in names]
    return [*first, *rest]


@pytest.mark.parametrize(
    ("api", "workers"),
    [
        ("keras", 2),
        pytest.param("tf_keras", 3, marks=SLOW),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        *BASIC,
        slow=[
            "arrays_are_shuffled_anew_in_each_epoch_and_each_example_comes_once",
            "each_batch_of_a_dataset_with_threads_comes_once",
            "a_generator_gives_all_workers_the_same_batches",
            "datasets_of_unknown_length_take_nothing_for_good",
            "metrics_are_updated_in_a_function_of_its_own",
            "a_dense_model_with_sgd",
            "a_wide_model_with_sgd",
            "an_embedding_with_adam",
            "a_dataset_that_was_distributed_before",
            "a_generator_whose_length_nobody_knows",
            "saved_weights_are_loaded",
            "eager_training",
            "several_steps_an_execution",
            "xla_is_refused_and_nothing_hangs",
        ],
    ),
)
def test_workers_do_what_one_process_does(run_check, check, api, workers):
    run_check(check, api, workers=workers)


@SLOW
@pytest.mark.parametrize("check", checks_of("parity.py", only=FIRST, slow=FIRST[:1]))
@pytest.mark.parametrize(
    "communication", [pytest.param("horovod", marks=SLOW), "tensorflow"], indirect=True
)
def test_workers_do_what_one_process_does_however_they_communicate(run_check, check, communication):
    run_check(check, "tf_keras")


@SLOW
@pytest.mark.parametrize("check", checks_of("training.py"))
@pytest.mark.parametrize("communication", ["horovod"], indirect=True)
def test_workers_over_horovod_train_as_one_process_does(run_check, check, communication):
    run_check(check, "keras")


@SLOW
@pytest.mark.parametrize("check", checks_of("parity.py", "custom_loop.py"))
@pytest.mark.parametrize("communication", ["tensorflow"], indirect=True)
def test_workers_over_tensorflows_collectives_reduce_as_one_process_does(
    run_check, check, communication
):
    run_check(check, "keras")


@pytest.mark.parametrize(
    ("communication", "workers"),
    [
        ("shared_memory", 2),
        ("tensorflow", 2),
        pytest.param("shared_memory", 5, marks=SLOW),
        pytest.param("tensorflow", 3, marks=SLOW),
    ],
    indirect=["communication"],
)
@pytest.mark.parametrize("check", checks_of("collectives.py", slow=LONG_EXCHANGES))
def test_collectives(run_check, check, communication, workers):
    run_check(check, workers=workers)


@pytest.mark.parametrize("next_step", ["function", pytest.param("eager", marks=SLOW)])
def test_after_a_step_that_failed_midway_workers_do_not_go_on(forked, next_step):
    code, output = forked.run("--workers", 2, PROGRAMS / "failed_midway.py", next_step)
    assert code != 0
    assert re.search("[Rr]estart the job from its last checkpoint", output)


@pytest.mark.parametrize(
    ("communication", "workers"),
    [("horovod", 3), ("tensorflow", 4)],
)
@pytest.mark.parametrize("check", checks_of("collectives.py", marks=SLOW))
def test_collectives_on_hosts_of_two_workers(forked, run_check, check, communication, workers):
    if communication == "tensorflow":
        forked.hide_horovod()
    forked.environ["KERAS_STRATEGIES_COMMUNICATION"] = "auto"
    forked.environ[hosts.WORKERS_A_HOST] = "2"
    run_check(check, workers=workers)


@SLOW  # the collectives of such hosts are tested above
@pytest.mark.parametrize("check", checks_of("parity.py"))
def test_hosts_of_two_workers_do_what_one_process_does(forked, run_check, check):
    forked.environ["KERAS_STRATEGIES_COMMUNICATION"] = "auto"
    forked.environ[hosts.WORKERS_A_HOST] = "2"
    run_check(check, "keras", workers=3)


@pytest.mark.parametrize("check", some_of("parity.py", "training.py"))
def test_workers_of_several_replicas_do_what_one_process_does(run_check, check):
    run_check(check, "keras", 2)


@SLOW
@pytest.mark.parametrize("check", checks_of("parity.py"))
def test_workers_of_several_replicas_do_what_one_process_does_in_tf_keras(run_check, check):
    run_check(check, "tf_keras", 2)


@SLOW
@pytest.mark.parametrize(("workers", "replicas"), [pytest.param(1, 3, marks=SLOW), (2, 2)])
@pytest.mark.parametrize("check", checks_of("replicas.py"))
def test_custom_loops_with_several_replicas_a_worker(run_check, check, workers, replicas):
    run_check(check, replicas, workers=workers)


@pytest.mark.parametrize(
    ("api", "options"),
    [
        pytest.param("keras", '{"bucket_bytes": 64}', marks=SLOW),
        pytest.param("tf_keras", '{"sum_rows": true, "dense_below": 100}', marks=SLOW),
        pytest.param("tf_keras", '{"bucket_bytes": 0, "sum_rows": true}', marks=SLOW),
    ],
)
@pytest.mark.parametrize("check", checks_of("parity.py"))
def test_parity_however_gradients_travel(run_check, check, api, options):
    run_check(check, api, 1, options)


@pytest.mark.parametrize(
    ("communication", "api", "replicas"),
    [
        ("horovod", "keras", 1),
        pytest.param("tensorflow", "tf_keras", 2, marks=SLOW),
    ],
    indirect=["communication"],
)
@pytest.mark.parametrize(
    "check", checks_of("compression.py", slow=["training_is_near_that_without_compression"])
)
def test_compression(run_check, check, communication, api, replicas):
    run_check(check, api, replicas)


@SLOW
@pytest.mark.parametrize(
    ("api", "workers", "replicas"),
    [
        ("keras", 2, 1),
        *(pytest.param(*case, marks=SLOW) for case in [("keras", 2, 2), ("tf_keras", 2, 1)]),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "mixed_precision.py",
        slow=[
            "float16_skips_the_steps_that_one_process_skips_where_gradients_are_accumulated",
            "bfloat16_follows_one_process",
        ],
    ),
)
def test_half_precision(run_check, check, api, workers, replicas):
    run_check(check, api, replicas, workers=workers)


@pytest.mark.slow
@pytest.mark.parametrize(("ps", "options"), [(1, [1]), (0, [2, "central"])])
@pytest.mark.parametrize("check", checks_of("mixed_precision.py"))
def test_half_precision_on_servers_and_in_one_place(run_check, check, ps, options):
    run_check(check, "keras", *options, workers=1 + ps, ps=ps)


def test_a_keras_in_which_workers_cannot_agree_on_overflow_is_refused(monkeypatch):
    import keras

    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    monkeypatch.delattr(keras.optimizers.LossScaleOptimizer, "check_finite")
    with strategy.scope():
        variable = keras.Variable(1.0)
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
        with pytest.raises(ValueError, match="check_finite. Received: Keras 3.*mixed_bfloat16"):
            optimizer.build([variable])


def test_a_model_saved_with_our_loss_scaling_loads(tmp_path):
    import keras

    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(strategies.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=8.0), "mse")
    model.train_on_batch(np.ones([4, 2]), np.ones([4, 1]))
    model.save(tmp_path / "model.keras")
    config = {"module": "strategies.loss_scaling", "class_name": "LossScaleOptimizer"}
    loaded = keras.saving.load_model(tmp_path / "model.keras").optimizer
    known = {"LossScaleOptimizer": strategies.LossScaleOptimizer}
    older = keras.saving.deserialize_keras_object({**config, "config": loaded.get_config()}, known)
    assert [optimizer.initial_scale for optimizer in (loaded, older)] == [8.0, 8.0]


@pytest.mark.parametrize("check", some_of(*BASIC))
def test_a_cluster_of_one_worker_needs_no_other(run_check, check):
    run_check(check, "keras", workers=1)


def test_without_tf_config_there_is_one_worker(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = strategies.from_tf_config()
    assert strategy.num_replicas_in_sync == 1
    assert strategy.extended.worker_devices == ("/job:localhost/replica:0/task:0/device:CPU:0",)


def test_an_evaluator_works_alone(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", TWO % ("", "evaluator"))
    strategy = strategies.from_tf_config()
    assert strategy.num_replicas_in_sync == 1
    assert strategy.cluster_resolver.task_type == "evaluator"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{'cluster'", "JSON requires double quotes"),
        ("", "Received: ''"),
        (TWO % (', "ps": ["127.0.0.1:3"]', "worker"), "cannot use parameter servers"),
        (
            '{"cluster": {"worker": {"1": "a:1", "2": "b:1"}}, '
            '"task": {"type": "worker", "index": 1}}',
            "must list all workers, numbered from 0",
        ),
    ],
)
def test_a_wrong_tf_config_is_refused_before_anything_starts(monkeypatch, text, message):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ClusterConfigError, match=message):
        strategies.MultiWorkerMirroredStrategy()


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "soon"])
def test_a_wrong_start_timeout_is_refused(seconds):
    with pytest.raises(ValueError, match="number of seconds above 0. Received: "):
        strategies.MultiWorkerMirroredStrategy(start_timeout=seconds)


def test_the_start_timeout_comes_from_the_argument_then_from_the_launcher():
    environ = {"KERAS_STRATEGIES_START_TIMEOUT": "7"}
    assert start_timeout_seconds(3, environ) == 3
    assert start_timeout_seconds(None, environ) == 7
    assert start_timeout_seconds(None, {}) == START_TIMEOUT_SECONDS


# A process in which Horovod cannot be imported, as where it is not installed.
WITHOUT_HOROVOD = "import sys; sys.modules['horovod'] = None; import strategies\n"


@pytest.fixture
def run_without_horovod(forked):
    """Runs code in such a process; returns its exit code and its output."""

    def run(code, **environ):
        forked.environ |= environ
        process = forked.popen([forked.python, "-c", WITHOUT_HOROVOD + code])
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    return run


def test_one_worker_needs_no_horovod(run_without_horovod):
    code, output = run_without_horovod("print(strategies.from_tf_config().num_replicas_in_sync)")
    assert code == 0
    assert output.endswith("1\n")


def test_horovod_that_is_asked_for_and_missing_names_build_md(run_without_horovod):
    code, output = run_without_horovod(
        "strategies.MultiWorkerMirroredStrategy(communication='horovod')",
        TF_CONFIG=TWO % ("", "worker"),
    )
    last = output.strip().splitlines()[-1]
    assert code == 1
    assert last.startswith("ImportError: communication='horovod' requires Horovod 0.28.1, built")
    assert "BUILD.md" in last


def test_tensorflows_collectives_start_before_the_first_tensor(run_without_horovod):
    code, output = run_without_horovod(
        "import tensorflow as tf; tf.constant(1); "
        "strategies.MultiWorkerMirroredStrategy(communication='tensorflow')",
        TF_CONFIG=TWO % ("", "worker"),
    )
    assert code == 1
    assert "Create the strategy at the start of the script" in output.strip().splitlines()[-1]
