"""The order and the places of TensorFlow's collectives, read from graphs that nobody runs."""

import pytest
import tensorflow as tf

from strategies.collectives import RowCounts
from strategies.collectives.dtypes import from_bytes, to_bytes, to_words
from strategies.collectives.tensorflow import _LENGTHS, TensorFlowCollectives, _padded_length
from strategies.compat.tensorflow import CommunicationOptions

CPU, GPU = "/device:CPU:0", "/device:GPU:0"
LONG = 1 << 16  # a vector that is summed in a ring


def collectives(device=CPU, **options):
    return TensorFlowCollectives(0, 2, device, CommunicationOptions(**options))


def operations(function, *arguments):
    """Returns the collective operations of a function's graph, in the order they were made."""
    graph = tf.function(function).get_concrete_function(*arguments).graph
    return [op for op in graph.get_operations() if op.type.startswith("Collective")]


def group_of(op):
    return int(tf.get_static_value(op.inputs[2]))


def test_an_operation_waits_for_the_one_before_it_in_a_function():
    workers = collectives()

    def function(value):
        return [*workers.all_reduce([value, tf.cast(value, tf.int32)]), workers.all_gather(value)]

    made = operations(function, tf.TensorSpec([LONG]))
    assert [op.type for op in made] == ["CollectiveReduceV2"] * 2 + ["CollectiveGatherV2"] * 2
    for before, after in zip(made[:-1], made[1:], strict=True):
        assert before in after.control_inputs
        assert after.inputs[4].dtype == tf.resource
        assert after.inputs[4] is before.inputs[4]


def test_a_condition_waits_as_well():
    workers = collectives()

    def function(value):
        workers.all_reduce([value])
        one = tf.cond(value[0] > 0, lambda: workers.all_reduce([value])[0], lambda: value)
        return one, workers.all_reduce([value])[0]

    graph = tf.function(function).get_concrete_function(tf.TensorSpec([4])).graph
    (condition,) = (op for op in graph.get_operations() if op.type in ("If", "StatelessIf"))
    before, after = (op for op in graph.get_operations() if op.type.startswith("Collective"))
    assert before in condition.control_inputs
    assert condition in after.control_inputs


def test_values_of_one_type_travel_together():
    workers = collectives()
    values = [tf.TensorSpec([LONG]), tf.TensorSpec([LONG], tf.float16), tf.TensorSpec([4])]
    made = operations(lambda *values: workers.all_reduce(values), *values)
    assert sorted(op.inputs[0].shape[0] for op in made) == [LONG, LONG + 4]
    assert len({group_of(op) for op in made}) == 2


def test_what_is_apart_has_groups_and_an_order_of_its_own():
    workers = collectives()
    stream = workers.new_stream()

    def function(value):
        return workers.all_reduce([value]) + stream.all_reduce([value])

    one, other = operations(function, tf.TensorSpec([LONG]))
    assert group_of(one) != group_of(other)
    assert one.inputs[4] is not other.inputs[4]
    assert one not in other.control_inputs


@pytest.mark.parametrize(
    ("device", "implementation", "kind", "dtype", "expected"),
    [
        (CPU, "AUTO", "sum", tf.float32, (CPU, "ring")),
        (CPU, "NCCL", "sum", tf.float32, (CPU, "ring")),
        (GPU, "AUTO", "sum", tf.float32, (GPU, "nccl")),
        (GPU, "NCCL", "sum", tf.float16, (GPU, "nccl")),
        (GPU, "RING", "sum", tf.float32, (CPU, "ring")),
        (GPU, "NCCL", "sum", tf.int32, (CPU, "ring")),
        (GPU, "NCCL", "gather", tf.int32, (CPU, "ring")),
    ],
)
def test_floats_are_summed_on_gpus(device, implementation, kind, dtype, expected):
    assert collectives(device, implementation=implementation)._placement(kind, dtype) == expected


def test_a_short_sum_takes_one_gather_which_is_half_as_many_round_trips():
    workers = collectives()
    for length, kind in ((1, "Gather"), (1 << 14, "Gather"), ((1 << 14) + 1, "Reduce")):
        (made,) = operations(lambda value: workers.all_reduce([value]), tf.TensorSpec([length]))
        assert made.type == f"Collective{kind}V2"


def test_a_sum_of_unknown_length_is_made_as_where_the_length_is_known():
    """One worker may have traced a function for any length, and another for one."""
    workers = collectives()
    function = tf.function(lambda value: workers.all_reduce([value]))
    graph = function.get_concrete_function(tf.TensorSpec([None])).graph
    (condition,) = (op for op in graph.get_operations() if op.type == "If")
    kinds = []
    for name in ("then_branch", "else_branch"):
        branch = graph._get_function(condition.get_attr(name).name).graph
        kinds += [op.type for op in branch.get_operations() if op.type.startswith("Collective")]
    assert kinds == ["CollectiveGatherV2", "CollectiveReduceV2"]


def test_numbers_of_rows_that_are_known_are_not_exchanged_again():
    workers = collectives()

    def function(rows, counts, most):
        back = RowCounts(counts, most)
        received, known = workers.all_to_all(rows, counts)
        return received, workers.all_to_all(received, known.received, back)[0]

    specs = tf.TensorSpec([None, 3]), tf.TensorSpec([2], tf.int32), tf.TensorSpec([], tf.int32)
    made = operations(function, *specs)
    kinds = ["CollectiveGatherV2", "CollectiveAllToAllV2", "CollectiveAllToAllV2"]
    assert [op.type for op in made] == kinds


def test_the_timeout_reaches_the_operations():
    workers = collectives(timeout_seconds=7.0)
    (made,) = operations(lambda value: workers.all_reduce([value]), tf.TensorSpec([4]))
    assert made.get_attr("timeout_seconds") == 7
    assert made.get_attr("communication_hint") == b"ring"


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "int64", "complex128"])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_bytes_stand_for_the_same_values(dtype, length):
    values = tf.cast(tf.range(length), dtype)
    content = to_bytes(to_words(values))
    each = 1 if dtype == "bool" else values.dtype.size
    found = from_bytes(content[: length * each], values.dtype)
    assert found.numpy().tolist() == values.numpy().tolist()


def test_text_is_refused():
    with pytest.raises(ValueError, match=r"Received: string. .* tf.io.decode_raw"):
        to_words(tf.constant(["text"]))


def test_vectors_are_padded_to_few_lengths_and_by_at_most_a_sixteenth():
    lengths = [*range(70), 127, 128, 129, 10_000, 10_001, 123_456_789]
    padded = [int(_padded_length(tf.constant(each, tf.int64))) for each in lengths]
    for length, found in zip(lengths, padded, strict=True):
        assert length <= found <= 17 / 16 * length
    assert sum(length <= 10_000 for length in _LENGTHS) < 180
