"""Reads a whole table, for code that reads its variable like that of `keras.layers.Embedding`."""

from __future__ import annotations

import tensorflow as tf

from strategies.embedding.lookup.group_lookup import Lookup
from strategies.embedding.shard.table import Table
from strategies.utils.assertions import assert_in_step

# A read copies the rows, and its gradient is just as large.
MAX_BYTES = 1 << 30


def whole_table(lookup: Lookup, table: Table) -> tf.Tensor:
    """Returns the rows of the ids 0, 1, 2, ... of a table in this process, float32 [n, width].

    Row k is that of id k, as in a `keras.layers.Embedding`, and gets a gradient as in a lookup of
    all these ids. There are `input_dim` ids; without `input_dim`, or with an admission rule, as
    many as have a row.

    Raises:
      tf.errors.InvalidArgumentError: in the step, if an id outside of these has a row, or if the
        rows are larger than `MAX_BYTES`.
    """
    config = table.config
    bound = config.input_dim if config.admission is None else None
    size = table.map.size()
    count = size if bound is None else tf.constant(bound, tf.int64)
    ids = tf.range(count)
    known = tf.math.count_nonzero(table.map.find(ids) >= 0)
    most = MAX_BYTES // (4 * config.output_dim)
    assert_in_step(
        tf.equal(known, size) & (count <= most),
        [
            f"The table {config.name!r} can be read as a variable if its ids are 0, 1, 2, ..., "
            f"{most - 1} at most. Received:", size, "ids with a row,", known, "of them below",
            count, "Call the layer on the ids whose rows you need (for a tied output or a "
            "penalty), compile with AdamW (for weight decay), call layer.rows(), or set input_dim.",
        ],
    )  # fmt: skip
    return tf.ensure_shape(lookup.all_rows(ids), [bound, config.output_dim])
