"""Steps without data count nowhere, and logged losses are those of one process."""

import pytest
import tensorflow as tf

from strategies.core.step_inputs import StepInputs
from tests.support.check_jobs import checks_of

pytestmark = pytest.mark.training
slow = pytest.mark.slow


def _add_nested(count):
    """Adds to a variable in a branch of a loop, whatever the batch is."""

    def body(i):
        added = tf.cond(i < 1, lambda: count.assign_add(2), lambda: count.assign_add(3))
        with tf.control_dependencies([added]):
            return [i + 1]

    return tf.while_loop(lambda i: i < 2, body, [tf.constant(0)])


def test_operations_with_effects_wait_for_the_batch_and_no_others_do():
    count, initial = tf.Variable(0), tf.Variable(5)

    @tf.function
    def step(iterator):
        inputs = StepInputs((next(iterator),), {}, [""])
        with inputs.guard_effects():
            count.assign_add(tf.constant(1))
            _add_nested(count)
            return initial + 1

    iterator = iter(tf.data.Dataset.range(2).batch(1))
    assert int(step(iterator)) == 6
    step(iterator)
    assert int(count) == 12
    with pytest.raises(tf.errors.OutOfRangeError):
        step(iterator)
    assert int(count) == 12
    operations = step.get_concrete_function(iterator).graph.get_operations()
    waiting = {each.type for each in operations if each.control_inputs}
    assert "AssignAddVariableOp" in waiting and waiting.isdisjoint(["Const", "ReadVariableOp"])


def test_loops_and_branches_of_tensorflow_1_wait_for_the_batch():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.disable_control_flow_v2()
        try:
            count = tf.compat.v1.get_variable("count", initializer=0, use_resource=True)
            data = tf.data.Dataset.range(2).batch(1)
            batch = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
            inputs = StepInputs((batch,), {}, [""])
            with inputs.guard_effects():
                end = _add_nested(count)
        finally:
            tf.compat.v1.enable_control_flow_v2()
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(end)
        session.run(end)
        assert session.run(count) == 10
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(end)
        assert session.run(count) == 10


@slow
@pytest.mark.parametrize(
    ("api", "kind", "workers", "ps"),
    [
        ("keras", "workers", 2, 0),
        *(
            pytest.param(*case, marks=slow)
            for case in [
                ("keras", "mirrored", 0, 0),
                ("keras", "sync", 2, 1),
                ("keras", "half_async", 1, 1),
                ("tf_keras", "workers", 2, 0),
                ("tf_keras", "central", 0, 0),
                ("tf_keras", "async", 2, 1),
                ("tf_keras", "geo", 1, 1),
            ]
        ),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "steps_and_logs.py",
        slow=[
            "moving_averages_and_accumulated_gradients_have_no_more_steps",
            "steps_of_an_execution_with_leftovers_are_counted",
            "steps_run_eagerly_are_counted",
        ],
    ),
)
def test_steps_and_logs(run_check, check, api, kind, workers, ps):
    run_check(check, api, kind, workers=workers, ps=ps)
