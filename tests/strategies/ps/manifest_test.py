"""What workers write into the manifest of a server."""

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.embedding.shard.id_map import IdMap
from strategies.ps.lock import Lock
from strategies.ps.manifest import Registration, StateEntry, entries_of
from strategies.ps.membership import worker_states
from strategies.ps.row_log import RowLog
from strategies.variables.growable_array import GrowableArray
from strategies.variables.restart_marks import marks_in


def entries_in(graph):
    found = entries_of(graph.get_operations(), marks_in(graph))
    return {entry.name: entry for entry in found}


def test_variables_and_tables_are_found_with_their_kinds():
    with tf.Graph().as_default() as graph:
        ResourceVariable(lambda: tf.zeros([3, 2]), name="weight", trainable=False)
        tf.raw_ops.VarHandleOp(dtype=tf.bfloat16, shape=tf.TensorShape(None), shared_name="any")
        with tf.name_scope("rows"):
            IdMap()
    assert entries_in(graph) == {
        "weight": StateEntry("weight", "float32", (3, 2)),
        "any": StateEntry("any", "bfloat16"),
        "rows/MutableHashTable": StateEntry("rows/MutableHashTable", "int64", key_dtype="int64"),
    }


def test_what_a_restarted_server_must_not_have_is_left_out():
    with tf.Graph().as_default() as graph:
        worker_states(2)
        Lock("changes")
        Lock("0/gather/lock")
        tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name="kept/1/0")
        Registration(graph)
    assert entries_in(graph) == {}


def test_an_array_is_saved_up_to_its_length_and_a_log_moves_ahead():
    with tf.Graph().as_default() as graph:
        GrowableArray((4,), tf.bfloat16)
        RowLog("weight", 2000)
    entries = entries_in(graph)
    (array,) = (entry for entry in entries.values() if entry.shape == (None, 4))
    assert entries[array.length].shape == ()
    assert entries["weight/row_log_position"].advance > 2**39
    assert entries["weight/changed_rows"].advance == 0


def test_a_handle_in_a_function_is_found_where_it_is_created():
    with tf.Graph().as_default() as graph:

        @tf.function(autograph=False)
        def function():
            return GrowableArray((2,), tf.float32).gather(tf.constant([0]))

        function()
    assert len(entries_in(graph)) == 2


def test_each_addition_is_sent_once_and_all_again_after_a_restart():
    sent = []

    def send(registration, restarts):
        before = len(sent)
        if not registration.is_complete(restarts):
            registration.send(lambda feeds: sent.append(len(list(feeds.values())[0])), restarts)
        return sent[before:]

    with tf.Graph().as_default() as graph:
        registration = Registration(graph)
        for name in "ab":
            ResourceVariable(lambda: tf.zeros([]), name=name, trainable=False)
        registration.search()
        assert send(registration, 0) == [2]
        ResourceVariable(lambda: tf.zeros([]), name="c", trainable=False)
        assert send(registration, 0) == [], "a thread may still be adding to the graph"
        registration.search()
        assert [send(registration, restarts) for restarts in (0, 0, 1, 1)] == [[1], [], [3], []]
