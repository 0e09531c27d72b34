"""What a step of Keras builds, logs and normalizes; the checks stand in tests/support/steps.py."""

import keras
import pytest
import tensorflow as tf
import tf_keras

import strategies
from strategies.variables.merged import is_merged, mark_merged
from tests.support import steps
from tests.support.check_jobs import checks_of

slow = pytest.mark.slow
REPLICAS = ["CPU:0", "CPU:1"]
KINDS = [
    strategies.MirroredStrategy,
    pytest.param(strategies.CentralStorageStrategy, marks=slow),
]


@pytest.fixture(params=KINDS, ids=["mirrored", "central"])
def strategy(request):
    return request.param(REPLICAS)


@pytest.mark.in_turn
@pytest.mark.parametrize("api", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_models_built_by_fit_start_as_in_one_process(strategy, api):
    steps.check_models_built_by_fit(api, strategy)


@pytest.mark.parametrize(
    ("api", "eager"),
    [(tf_keras, False), (tf_keras, True), (keras, False)],
    ids=["tf_keras", "tf_keras-eager", "keras"],
)
def test_merged_values_are_logged_once(strategy, api, eager):
    steps.check_logs_of_merged_values(api, strategy, eager)


def test_a_subclassed_model_takes_ragged_inputs(strategy):
    steps.check_ragged_inputs_of_a_subclassed_model(keras, strategy)


@pytest.mark.in_turn
@pytest.mark.parametrize("api", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_synchronized_normalization(strategy, api):
    steps.check_synchronized_normalization(api, strategy)


@slow  # those of replicas are tested above
@pytest.mark.parametrize(
    ("api", "ps", "mode"),
    [
        ("tf_keras", 0, ()),
        pytest.param("keras", 0, (), marks=slow),
        pytest.param("tf_keras", 1, ("sync",), marks=slow),
        pytest.param("keras", 1, ("async",), marks=slow),
        pytest.param("tf_keras", 1, ("geo",), marks=slow),
    ],
    ids=["tf_keras", "keras", "sync", "async", "geo"],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "steps.py", slow=["a_subclassed_model_takes_ragged_inputs", "synchronized_normalization"]
    ),
)
def test_workers_do_what_one_process_does(run_check, check, api, ps, mode):
    run_check(check, api, *mode, ps=ps)


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_values_of_unknown_rank_are_reduced(op):
    strategy = strategies.MirroredStrategy(REPLICAS)

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec([None, 1])])
    def reduce(one, other):
        values = strategy.run(lambda a, b: (a * 2, b * 1), args=(one, other))
        return [strategy.reduce(op, value, axis=None) for value in values]

    one, other = reduce(tf.constant([[1.0, 2.0]]), tf.constant([[3.0]]))
    factor = 2 if op == "SUM" else 1
    assert one.numpy().tolist() == [[2.0 * factor, 4.0 * factor]]
    assert other.numpy().tolist() == [[3.0 * factor]]


def test_shapes_of_tensorflow_1_are_reduced():
    class Value:
        """With a shape whose dimensions are objects, as after `disable_v2_tensorshape()`."""

        shape = (tf.compat.v1.Dimension(2), tf.compat.v1.Dimension(None))

    assert strategies.mirrored._shape_of(Value()) == (2, None)


def test_what_is_computed_from_merged_values_alone_is_merged():
    found = {}

    @tf.function
    def trace(x):
        merged = mark_merged(tf.reduce_sum(x))
        variable_sum = merged + variable
        found.update(
            itself=is_merged(merged),
            computed=is_merged(tf.sqrt(merged) / 2.0),
            with_variable=is_merged(variable_sum),
            mixed=is_merged(merged + x[0]),
            own=is_merged(tf.reduce_sum(x)),
            constant=is_merged(tf.constant(1.0)),
            random=is_merged(merged * tf.random.uniform([])),
        )
        return merged

    variable = tf.Variable(1.0)
    trace(tf.ones([2]))
    assert found == {
        "itself": True,
        "computed": True,
        "with_variable": True,
        "mixed": False,
        "own": False,
        "constant": False,
        "random": False,
    }
