"""The lookup of all tables of one width: one journey of ids, one of rows, one of gradients."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies._tensorflow import CondBranchFuncGraph, WhileBodyFuncGraph, is_recorded
from strategies.core.extended import ReplicatedExtended
from strategies.embedding.lookup.fused_optimizer import FusedOptimizer
from strategies.embedding.lookup.router import Found, LookupRouter
from strategies.reduction import sparse as row_gradients
from strategies.variables.sparse_variable import ActiveRows, SparseVariable

# One trace of a function serves calls under a tape and calls without one.
_OUTSIDE = (
    "Whether an embedding trains follows from a tape only where both are in the same tf.function, "
    "or neither is in any. Received: a gradient asked for outside of the function that calls the "
    "layer, with training=None. Call the layer or the model with training=True or training=False, "
    "or take the gradient inside."
)


class Lookup:
    """Looks up in tables whose rows one variable stands for.

    A gradient is summed over all examples of all workers, as often as an id came. What a
    replica's gradient counts for, Keras says by dividing the loss by the number of replicas; here
    nothing is divided.

    Args:
      variable: what an optimizer sees.
      route: to the rows.
      trainer: trains the rows, None if the model's optimizer does.
    """

    def __init__(
        self, variable: SparseVariable, route: LookupRouter, trainer: FusedOptimizer | None
    ):
        self._variable = variable
        self.route = route
        self._trainer = trainer
        self._width = int(variable.shape[-1])
        self._recorded = threading.local()

    def __call__(self, ids: Sequence[tf.Tensor], training: bool | None) -> list[tf.Tensor]:
        """Returns the rows of ids, float32 [n, width] for each table.

        Args:
          ids: for each table, int64 [n].
          training: whether ids get rows, and their rows gradients. None: if a tape records.
        """
        keys, positions = keys_of(ids)
        sizes = [tf.size(each) for each in ids]
        values = self._values(keys, training)
        each = tf.gather(values, positions)
        parts = tf.split(each, tf.stack(sizes)) if len(sizes) > 1 else [each]
        return [tf.ensure_shape(part, [None, self._width]) for part in parts]

    def _values(self, keys: tf.Tensor, training: bool | None) -> tf.Tensor:
        """Returns what the rows of keys hold, float32 [n, width]."""
        if training is False:
            return self.route.found(keys, False, False).values
        token, is_first = self._token()
        is_inferred = training is None
        if is_inferred and not is_recorded([token]):
            return _without_gradient(self.route.found(keys, False, False).values, token)
        found = self.route.found(keys, True, is_first and _is_first_replica())
        return self._differentiable(found, token, is_inferred)

    def _differentiable(self, found: Found, token: tf.Tensor, is_inferred: bool) -> tf.Tensor:
        """Returns the rows where they were asked for; their gradient goes to where they are.

        Args:
          found: what the lookup found.
          token: what the gradient is taken of.
          is_inferred: whether that a tape records is why this is training.
        """
        function = _function()

        @tf.custom_gradient
        def looked_up(token: tf.Tensor) -> tuple:
            def gradient(upstream: tf.Tensor) -> tf.IndexedSlices:
                if is_inferred and _function() is not function:
                    raise ValueError(_OUTSIDE)
                arrived = found.forth(tf.convert_to_tensor(upstream))
                there = tf.where(found.rows >= 0)[:, 0]
                rows = tf.gather(found.rows, there)
                if found.are_distinct:
                    self._recorded.distinct = weakref.ref(rows)
                # As many rows as there is no memory for: nothing may make this dense.
                return tf.IndexedSlices(
                    tf.gather(arrived, there),
                    rows,
                    tf.constant([2**60, self._width], tf.int64),
                )

            del token
            return tf.identity(found.values), gradient

        return looked_up(token)

    def _token(self) -> tuple[tf.Tensor, bool]:
        """Returns what lookups of one backward pass have in common, and whether this is the first.

        By the token that pass sees them all.
        """
        token = getattr(self._recorded, "token", None)
        if token is not None and is_recorded([token]) and _is_seen(token):
            return token, False
        trainer = self._trainer
        token = self._gate(self._variable.token() if trainer is None else trainer.token())
        self._recorded.token = token
        return token, True

    def _gate(self, token: tf.Tensor) -> tf.Tensor:
        trainer = self._trainer

        @tf.custom_gradient
        def gate(token: tf.Tensor) -> tuple:
            def gradient(upstream: tf.IndexedSlices) -> Any:
                if not isinstance(upstream, tf.IndexedSlices):
                    raise ValueError(
                        "An embedding's lookup is not inside tf.cond or a loop of TensorFlow's "
                        "that the gradient goes through. Received: a dense gradient. Call the "
                        "layer outside of it."
                    )
                summed = self.route.total(self._each_once(upstream))
                rows = shown(self._variable.view, summed.values, summed.indices)
                return rows if trainer is None else trainer.trained(rows)

            return tf.identity(token), gradient

        return gate(token)

    def _each_once(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns a gradient with each row once; that of one lookup may be so already."""
        distinct = getattr(self._recorded, "distinct", None)
        if distinct is not None and distinct() is gradient.indices:
            return gradient
        return row_gradients.unique(gradient)


def _without_gradient(values: tf.Tensor, token: tf.Tensor) -> tf.Tensor:
    """Returns values of which, inside a function, no gradient of rows may be asked for later."""
    if tf.executing_eagerly():  # no tape records now, so none can ask
        return values

    @tf.custom_gradient
    def guarded(values: tf.Tensor, token: tf.Tensor) -> tuple:
        def gradient(upstream: tf.Tensor) -> Any:
            raise ValueError(_OUTSIDE)

        return tf.identity(values), gradient

    return guarded(values, token)


def keys_of(ids: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns keys, and of each id in turn which of them is its.

    Args:
      ids: for each table, int64 [n].

    Returns:
      Number of the table, id and how often it is there, int64 [m, 3], each id of a table once;
      and positions in that, int32.
    """
    keys, positions, before = [], [], tf.constant(0)
    for number, each in enumerate(ids):
        unique, places, counts = tf.unique_with_counts(each)
        counts = tf.cast(counts, tf.int64)
        keys.append(tf.stack([tf.fill(tf.shape(unique), tf.constant(number, tf.int64)),
                              unique, counts], 1))  # fmt: skip
        positions.append(places + before)
        before += tf.size(unique)
    return tf.concat(keys, 0), tf.concat(positions, 0)


def _is_first_replica() -> bool:
    """Returns whether no other replica of this worker came before, in its step."""
    context = tf.distribute.get_replica_context()
    extended = None if context is None else context.strategy.extended
    return not isinstance(extended, ReplicatedExtended) or extended.local_replica() == 0


def _function() -> tf.Graph | None:
    """Returns the graph of the tf.function that is being traced, None where there is none.

    The graph of a branch or loop is a part of its function's.
    """
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, (CondBranchFuncGraph, WhileBodyFuncGraph)):
        graph = graph.outer_graph
    return graph


def _is_seen(token: tf.Tensor) -> bool:
    """Whether a tensor can be used here: Keras tries a model out in a graph of its own."""
    made_in = getattr(token, "graph", None)
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not made_in and graph is not None:
        graph = getattr(graph, "outer_graph", None)
    return graph is made_in


def shown(view: ActiveRows, values: tf.Tensor, rows: tf.Tensor) -> tf.IndexedSlices:
    """Puts rows in view and returns their gradient in terms of it."""
    view.show(rows)
    positions = tf.range(tf.size(rows))
    row_gradients.mark_reduced(positions, rows, lambda values, rows: shown(view, values, rows))
    return tf.IndexedSlices(values, positions, tf.shape(values))
