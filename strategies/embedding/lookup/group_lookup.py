"""Lookup in a group of tables with one exchange of ids, one of rows and one of gradients.

[Note: the gradient of a lookup]
The rows of a lookup are gathered from a table that no tape watches, so their gradient is custom. In
the forward pass, each lookup takes a token, a single row that stands for the table
(`RowVariable.token`), and all lookups of a pass take the same token:

    variable -- gate --> token --+-- lookup of one feature --> values
                                 +-- lookup of another one --> values

In the backward pass, the custom gradient of each lookup sends the gradient of its values to the
owners of the rows, and returns it as `tf.IndexedSlices` with respect to the token, with row numbers
as indices. TensorFlow concatenates the slices of all lookups, because they share the token. So the
gate, between the variable and the token, gets all gradients of a step together. It sums the
gradients of the same row over lookups (and over workers if that has not been done), puts the rows
in view (see [Note: the rows in view] in variables/row_variable.py), and returns the gradient for
the optimizer.

If workers exchange rows, each of these steps is an exchange among all workers, in the same order on
all of them: that of the forward pass, and its reverse.

[Note: lookups on the host]
Tables and their ids are in the host's memory, whatever the replica's device is. So a complete
lookup is placed on the host, from the ids to their rows, and also its gradient from that of the
rows on. Then ids are copied to the host once, and rows and gradients are copied once between the
host and the replica's device. If only the operations on tables were on the host, the positions of
the ids would be copied several times, and a GPU would wait for each copy. On the host, sums of
gradients also have the same bits in each run, because their order is the same.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies.compat.call_stack import is_running
from strategies.compat.tensorflow import (
    RECOMPUTE_CODE,
    PerReplica,
    function_graph,
    has_left,
    is_recorded,
    select_replica,
)
from strategies.core.extended import ReplicatedExtended
from strategies.embedding.lookup.fused_optimizer import FusedOptimizer
from strategies.embedding.lookup.router import LookupResult, LookupRouter
from strategies.reduction import sparse as row_gradients
from strategies.utils.devices import HOST
from strategies.variables.row_variable import RowVariable
from strategies.variables.row_view import RowView

# A function's trace does not depend on whether its caller records a tape.
_OUTSIDE = (
    "With training=None, an embedding and the gradient tape must be in the same tf.function, or "
    "both outside of any. Received: a gradient computed outside of the function that calls the "
    "layer. Call the layer or the model with training=True or training=False, or compute the "
    "gradient inside."
)
_IN_BRANCH = (
    "An embedding cannot be called inside tf.cond or a TensorFlow loop, such as tf.map_fn, if a "
    "gradient is computed through it. Received: a lookup in a branch or loop, and a gradient from "
    "outside. Call the layer outside of the branch or loop."
)
# In these functions, the first call is not recorded, and the second would count the ids again.
_RECOMPUTED = (
    "An embedding cannot be called inside keras.remat or tf.recompute_grad, because the backward "
    "pass would repeat the lookup and count its ids twice. Received: such a call. Call the layer "
    "outside and pass its output in; or call it with training=False if its rows are not trained."
)
# In a branch, a replica would decide on admission without the other replicas' occurrences of an id,
# and on eviction without the rows that they use.
_APART = (
    "All replicas of a worker must count the ids of a step together, for the table's admission or "
    "overflow='evict'. Received: a training lookup in a tf.function or branch inside the function "
    "that each replica runs. Call the layer outside of it, or omit these."
)


class Lookup:
    """Looks up ids in the tables of a group, whose rows share one variable.

    The gradient of a row is the sum over all occurrences of its id on all workers. It is not
    divided here; Keras divides the loss by the number of replicas.

    Args:
      variable: variable of the rows, as seen by the optimizer.
      router: routes keys to their rows.
      fused_optimizer: optimizer of the rows; None if the model's optimizer trains them.
      decides_on_rows: whether what gets a row depends on the ids of all replicas.
    """

    def __init__(
        self,
        variable: RowVariable,
        router: LookupRouter,
        fused_optimizer: FusedOptimizer | None,
        decides_on_rows: bool = False,
    ):
        self._decides_on_rows = decides_on_rows
        self._variable = variable
        self.router = router
        self._fused_optimizer = fused_optimizer
        self._width = int(variable.shape[-1])
        self._recorded = threading.local()

    def __call__(
        self, ids: Sequence[tf.Tensor], training: bool | None
    ) -> tuple[list[tf.Tensor], tf.Tensor | None]:
        """Returns the rows of ids, float32 [n, width] for each table, and their L2 penalty if any.

        The penalties of all replicas add up to that of the step.

        Args:
          ids: ids of each table, int64 [n].
          training: whether ids get rows and rows get gradients; None is true if a tape records.
        """
        with tf.device(HOST):  # see [Note: lookups on the host]
            keys, positions = keys_of(ids)
            sizes = [tf.size(each) for each in ids]
            values, penalties = self._look_up(keys, training)
            each = tf.gather(values, positions)
            parts = tf.split(each, tf.stack(sizes)) if len(sizes) > 1 else [each]
            rows = [tf.ensure_shape(part, [None, self._width]) for part in parts]
            if penalties is None:
                return rows, None
            return rows, tf.reduce_sum(penalties[:, tf.newaxis] * tf.square(values))

    def all_rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of distinct ids of a single table, which do not count as occurring."""
        with tf.device(HOST):
            zeros = tf.zeros_like(ids)
            return self._look_up(tf.stack([zeros, ids, zeros], 1), None)[0]

    def _look_up(
        self, keys: tf.Tensor, training: bool | None
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the values of keys, float32 [n, width], and their `LookupResult.penalties`."""
        if training is False:
            return self.router.look_up([keys], False, False)[0].values, None
        # See [Note: the gradient of a lookup].
        token, is_first = self._token()
        is_inferred = training is None
        recorded = is_recorded([token])
        if not recorded and is_running(RECOMPUTE_CODE):
            raise ValueError(_RECOMPUTED)
        if is_inferred and not recorded:
            values = self.router.look_up([keys], False, False)[0].values
            return _without_gradient(values, token), None
        result = self._train(keys, is_first)
        return self._differentiable(result, token, is_inferred), result.penalties

    def _train(self, keys: tf.Tensor, is_first: bool) -> LookupResult:
        """Looks up keys in training, together with those of the worker's other replicas."""
        extended = _extended()
        if extended is None or len(extended.worker_devices) == 1:
            return self.router.look_up([keys], True, is_first)[0]
        # See [Note: merged replicas] in core/extended.py, [Note: admission per step] in router.py.
        if extended.is_inside_branch():
            if self._decides_on_rows:
                raise ValueError(_APART)
            starts_step = is_first and extended.local_replica() == 0
            return self.router.look_up([keys], True, starts_step)[0]
        replicas = range(len(extended.worker_devices))

        def look_up_together(_: tf.distribute.Strategy, keys: Any) -> PerReplica:
            each = [select_replica(replica, keys) for replica in replicas]
            with tf.device(HOST):  # this is not called by the replica, whose block has no effect
                return PerReplica(self.router.look_up(each, True, is_first))

        return tf.distribute.get_replica_context().merge_call(look_up_together, args=(keys,))

    def _differentiable(
        self, result: LookupResult, token: tf.Tensor, is_inferred: bool
    ) -> tf.Tensor:
        """Returns the values of a lookup, with a gradient that is scattered to the rows.

        Args:
          result: result of the lookup.
          token: tensor that the gradient is taken with respect to.
          is_inferred: whether training was inferred from a tape.
        """
        function = _function()
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

        @tf.custom_gradient
        def look_up_rows(token: tf.Tensor) -> tuple[Any, ...]:
            @_on_host
            def gradient(upstream: tf.Tensor | tf.IndexedSlices) -> tf.IndexedSlices:
                if is_inferred and _function() is not function:
                    raise ValueError(_OUTSIDE)
                if has_left(graph):
                    raise ValueError(_IN_BRANCH)
                scattered = result.scatter_gradient(_dense(upstream, self._width))
                # Ids without a row, which admission has refused, are not trained.
                present = tf.where(result.rows >= 0)[:, 0]
                rows = tf.gather(result.rows, present)
                # `_unique` recognizes this tensor by its identity: if the gradients of several
                # lookups are concatenated, it gets a different tensor.
                if result.are_distinct:
                    self._recorded.distinct = weakref.ref(rows)
                # A shape too large for memory, so that nothing makes the gradient dense.
                return tf.IndexedSlices(
                    tf.gather(scattered, present),
                    rows,
                    tf.constant([2**60, self._width], tf.int64),
                )

            del token
            return tf.identity(result.values), gradient

        return look_up_rows(token)

    def _token(self) -> tuple[tf.Tensor, bool]:
        """Returns the token of this forward pass, and whether this is its first lookup.

        The backward pass collects the gradients of all lookups through the token.
        """
        # The previous pass's token is no longer recorded by a tape. A token of another graph, such
        # as that in which Keras traces a model to build it, cannot be used here.
        token = getattr(self._recorded, "token", None)
        if token is not None and is_recorded([token]) and _is_accessible(token):
            return token, False
        fused = self._fused_optimizer
        token = self._gate(self._variable.token() if fused is None else fused.token())
        self._recorded.token = token
        return token, True

    def _gate(self, token: tf.Tensor) -> tf.Tensor:
        fused = self._fused_optimizer

        @tf.custom_gradient
        def gate(token: tf.Tensor) -> tuple[Any, ...]:
            @_on_host
            def gradient(upstream: tf.IndexedSlices) -> Any:
                # The gradient of a branch or loop is a dense tensor, without the row numbers.
                if not isinstance(upstream, tf.IndexedSlices):
                    raise ValueError(_IN_BRANCH)
                summed = self.router.reduce(self._unique(upstream))
                # With several replicas, the rows of all replicas are put in view together, when the
                # strategy sums their gradients; see [Note: marked gradients] in sparse.py.
                put = show if _is_only_replica() else _mark
                rows = put(self._variable.view, summed.values, summed.indices)
                return rows if fused is None else fused.train_rows(rows)

            return tf.identity(token), gradient

        return gate(token)

    def _unique(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Sums the gradients of the same row, unless each row already occurs only once."""
        distinct = getattr(self._recorded, "distinct", None)
        if distinct is not None and distinct() is gradient.indices:
            return gradient
        return row_gradients.unique(gradient)


def _on_host(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a gradient function run on the host; a tape calls it outside of any device scope."""

    def gradient_on_host(upstream: tf.Tensor | tf.IndexedSlices) -> Any:
        with tf.device(HOST):
            return gradient(upstream)

    return gradient_on_host


def _dense(gradient: tf.Tensor | tf.IndexedSlices, width: int) -> tf.Tensor:
    """Returns a gradient of the values of a lookup, [n, width], as one tensor."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    values = tf.ensure_shape(gradient.values, [None, width])
    return row_gradients.sum_by_position(values, gradient.indices, gradient.dense_shape[0])


def _without_gradient(values: tf.Tensor, token: tf.Tensor) -> tf.Tensor:
    """Returns values that, inside a function, raise an error if their gradient is computed."""
    if tf.executing_eagerly():  # no tape is recording, so no gradient can be computed
        return values

    @tf.custom_gradient
    def guard_gradient(values: tf.Tensor, token: tf.Tensor) -> tuple[Any, ...]:
        def gradient(upstream: tf.Tensor) -> Any:
            raise ValueError(_OUTSIDE)

        return tf.identity(values), gradient

    return guard_gradient(values, token)


def keys_of(ids: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the unique keys of ids, and the position of each id's key among them.

    Args:
      ids: ids of each table, int64 [n].

    Returns:
      The keys, int64 [m, 3]: the number of the table, the id, and its number of occurrences, with
      each id of a table once; and the position of each id's key, int32.
    """
    keys, positions, before = [], [], tf.constant(0)
    for number, each in enumerate(ids):
        unique, indices, counts = tf.unique_with_counts(each)
        counts = tf.cast(counts, tf.int64)
        keys.append(tf.stack([tf.fill(tf.shape(unique), tf.constant(number, tf.int64)),
                              unique, counts], 1))  # fmt: skip
        positions.append(indices + before)
        before += tf.size(unique)
    return tf.concat(keys, 0), tf.concat(positions, 0)


def _is_only_replica() -> bool:
    extended = _extended()
    return extended is None or len(extended.worker_devices) == 1


def _extended() -> ReplicatedExtended | None:
    """Returns the `extended` of the calling replica's strategy; None outside of replicas."""
    context = tf.distribute.get_replica_context()
    extended = None if context is None else context.strategy.extended
    return extended if isinstance(extended, ReplicatedExtended) else None


def _function() -> tf.Graph | None:
    """Returns the graph of the tf.function that is being traced; None in eager mode."""
    return None if tf.executing_eagerly() else function_graph(tf.compat.v1.get_default_graph())


def _is_accessible(token: tf.Tensor) -> bool:
    """Returns whether the current graph can use a tensor: Keras traces models in other graphs."""
    source = getattr(token, "graph", None)
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not source and graph is not None:
        graph = getattr(graph, "outer_graph", None)
    return graph is source


def show(view: RowView, values: tf.Tensor, references: tf.Tensor) -> tf.IndexedSlices:
    """Puts rows in view; returns their gradient, indexed by positions in the view.

    Args:
      view: the rows in view.
      values: values of the gradient.
      references: references to the rows; see [Note: references to rows] in row_view.py.
    """
    references, (values,) = view.drop_freed(references, values)
    positions, end = view.show_gradient(view.rows_of(references))
    _mark_reduced(view, positions, references)
    return tf.IndexedSlices(values, positions, tf.stack([end, tf.shape(values, tf.int64)[1]]))


def _mark(view: RowView, values: tf.Tensor, rows: tf.Tensor) -> tf.IndexedSlices:
    """Returns one replica's gradient; its rows are put in view after the sum over replicas."""
    positions = tf.range(tf.size(rows, tf.int64))
    _mark_reduced(view, positions, rows)
    return tf.IndexedSlices(values, positions, tf.shape(values, tf.int64))


def _mark_reduced(view: RowView, positions: tf.Tensor, rows: tf.Tensor) -> None:
    row_gradients.mark_reduced(positions, rows, lambda values, rows: show(view, values, rows))
