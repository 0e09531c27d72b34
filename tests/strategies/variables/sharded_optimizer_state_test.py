"""Mode "reduce" and its parts; the checks on clusters stand in tests/distributed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hypothesis import given
from hypothesis import strategies as some

from strategies import MirroredStrategy, ReductionOptions
from strategies.compat.keras import optimizer_of
from strategies.variables.optimizer_traits import is_elementwise
from strategies.variables.partitioned import Partition, PartitionedVariable, PartitionSpec
from tests.support.check_jobs import checks_of

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("api", "workers", "replicas"),
    [
        ("keras", 2, 1),
        *(
            pytest.param(*case, marks=SLOW)
            for case in [
                ("keras", 1, 2),
                ("tf_keras", 2, 2),
            ]
        ),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "split_state.py",
        slow=[
            "gradient_accumulation",
            "what_one_strategy_saves_the_others_read_whole",
            "optimizers_that_look_at_a_whole_variable_gather_their_state",
            "weight_decay",
            "averages_that_overwrite",
        ],
    ),
)
def test_each_replica_holds_a_part_and_nothing_else_changes(
    run_check, check, api, workers, replicas
):
    run_check(check, api, replicas, workers=workers)


def under_reduce(optimizer, mode="reduce"):
    options = ReductionOptions(mode=mode, split_above=4)
    with MirroredStrategy(num_replicas=2, options=options).scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(4, "tanh", input_shape=[3])])
        model.compile(optimizer, "mse")
    model.set_weights([np.full([3, 4], 0.5), np.zeros([4])])
    x = np.arange(24.0).reshape([8, 3])
    model.fit(x, np.ones([8, 4]), batch_size=4, shuffle=False, verbose=0)
    return model.get_weights()


def test_a_slot_variable_whose_shape_is_given_is_split():
    """Keras 3.16 gives the shape of every variable that it creates."""
    strategy = MirroredStrategy(
        num_replicas=2, options=ReductionOptions(mode="reduce", split_above=4)
    )
    value = np.arange(15, dtype="float32").reshape([5, 3])
    with strategy.scope():
        whole = tf.Variable(value, shape=[5, 3])
        with strategy.extended.colocate_vars_with(whole):
            slot = tf.Variable(value, shape=[5, 3], trainable=False, name="momentum")
    assert isinstance(slot, PartitionedVariable)
    np.testing.assert_array_equal(slot, value)


@pytest.mark.training
@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad"])
def test_legacy_optimizers_are_refused(name):
    options = {"momentum": 0.5} if name == "SGD" else {}
    optimizer = getattr(tf_keras.optimizers.legacy, name)(0.1, **options)
    with pytest.raises(ValueError, match=f"Received: tf_keras.optimizers.legacy.{name}. Use "):
        under_reduce(optimizer)


@pytest.mark.training
def test_updates_of_parts_are_not_compiled_by_xla():
    """Where there is a GPU, optimizers of tf_keras compile theirs."""
    optimizer = tf_keras.optimizers.Adam(0.1)
    optimizer.jit_compile = True
    expected = under_reduce(tf_keras.optimizers.Adam(0.1), "all_reduce")
    for ours, theirs in zip(under_reduce(optimizer), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


shapes = some.lists(some.integers(0, 5), max_size=3).map(tuple)


@given(shapes, some.integers(1, 7))
def test_parts_joined_are_the_whole(shape, count):
    spec = PartitionSpec(shape, count)
    value = tf.constant(np.arange(np.prod(shape, dtype=int)).reshape(shape))
    parts = [spec.part(value, number) for number in range(count)]
    assert [tuple(part.shape) for part in parts] == [spec.shape_of(n) for n in range(count)]
    assert max(spec.sizes) - min(spec.sizes) <= 1
    np.testing.assert_array_equal(spec.concatenate_parts(tf.concat(parts, 0)), value)


@given(some.lists(some.integers(0, 5), max_size=8), some.integers(1, 8))
def test_parts_of_rows_are_parts_of_the_table(indices, count):
    spec = PartitionSpec((6, 2), count)
    values = np.random.default_rng(0).normal(size=[len(indices), 2]).astype("float32")
    rows = tf.IndexedSlices(values, tf.constant(indices, tf.int32), tf.constant([6, 2]))
    for number in range(count):
        part = tf.convert_to_tensor(spec.part(rows, number))
        expected = spec.part(tf.convert_to_tensor(rows), number)
        np.testing.assert_allclose(part, expected, rtol=1e-6)


def split_variable():
    partition = Partition(PartitionSpec((3, 2), 2), [0, 1], lambda parts: tf.concat(parts, 0))
    parts = [tf.Variable(tf.zeros([2, 2])), tf.Variable(tf.ones([1, 2]))]
    return partition, PartitionedVariable(parts, partition, "momentum")


def test_what_is_in_view_is_read_and_written():
    partition, variable = split_variable()
    with partition.show_part(1):
        assert variable.shape == (1, 2)
        variable.assign_add(variable * 2)
        variable.scatter_sub(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0])))
    assert variable.shape == (3, 2)
    np.testing.assert_array_equal(variable.numpy(), [[0, 0], [0, 0], [2, 2]])
    variable.scatter_update(tf.IndexedSlices([[5.0, 6.0]], tf.constant([2])))
    variable.assign_sub(tf.ones([3, 2]))
    np.testing.assert_array_equal(tf.sqrt(variable + 1), tf.sqrt([[0.0, 0], [0, 0], [5, 6]]))


def test_what_is_kept_does_not_ask_the_others():
    partition, variable = split_variable()
    with variable.cache_whole():
        partition.join = None
        np.testing.assert_array_equal(variable.numpy(), [[0, 0], [0, 0], [1, 1]])


def test_a_checkpoint_holds_the_whole(tmp_path):
    _, variable = split_variable()
    path = tf.train.Checkpoint(v=variable).write(str(tmp_path / "c"))
    plain = tf.Variable(tf.zeros([3, 2]))
    tf.train.Checkpoint(v=plain).read(path).assert_consumed()
    np.testing.assert_array_equal(plain.numpy(), [[0, 0], [0, 0], [1, 1]])
    variable.assign(tf.zeros([3, 2]))
    tf.train.Checkpoint(v=variable).read(path).assert_consumed()
    np.testing.assert_array_equal(variable.numpy(), plain.numpy())


class Own(keras.optimizers.SGD):
    pass


class OwnElementwise(keras.optimizers.SGD):
    elementwise = True


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (keras.optimizers.Nadam, True),
        (keras.optimizers.Muon, False),
        (keras.optimizers.Adafactor, False),
        (Own, False),
        (OwnElementwise, True),
    ],
)
def test_optimizers_that_treat_each_element_by_itself(cls, expected):
    assert is_elementwise(cls(0.1)) is expected


def test_only_an_optimizers_own_step_is_known():
    assert optimizer_of(lambda variable: variable) is None
    assert optimizer_of(print) is None
