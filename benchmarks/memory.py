"""Measures what saves memory, and prints it as a table: MiB of each worker's process.

    $ .venv/bin/python benchmarks/memory.py

Each way to train runs in processes of its own, on two workers, for a few steps. The peak is the
largest resident set of a worker's process (VmHWM of /proc/self/status) over what it was when
TensorFlow and the strategy had started, and beside it the most that tensors took at once of it:
TensorFlow's allocator gives nothing back and leaves gaps. The optimizer's state is counted from its
variables.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

import turns

WORKERS, STEPS = 2, 3
MIB = 1 << 20


@dataclass(frozen=True)
class Model:
    """A stack of residual blocks of one Dense layer each.

    Attributes:
      blocks: how many.
      width: the units of each.
      examples: of one worker's batch.
    """

    blocks: int
    width: int
    examples: int

    @property
    def parameters(self) -> int:
        """How many it has, with the last layer."""
        return self.blocks * (self.width + 1) * self.width + self.width + 1


LARGE = Model(blocks=4, width=4096, examples=32)
DEEP = Model(blocks=24, width=256, examples=8192)
# The rows of the table: what is trained, and how.
WAYS: dict[str, tuple[Model, dict[str, Any]]] = {
    "all_reduce": (LARGE, {}),
    "reduce": (LARGE, {"mode": "reduce"}),
    "plain": (DEEP, {}),
    "accumulation": (DEEP, {"accumulate": 4}),
    "remat": (DEEP, {"remat": "block"}),
    "remat-activations": (DEEP, {"remat": "activations"}),
}
TITLES = {
    "all_reduce": "parameters: every worker has the whole state of Adam",
    "reduce": '`ReductionOptions(mode="reduce")`',
    "plain": "activations: all are kept for the backward pass",
    "accumulation": "`gradient_accumulation_steps=4`, a quarter of the batch at a time",
    "remat": "`keras.remat` around each block",
    "remat-activations": '`keras.RematScope(mode="activations")`',
}


def main() -> None:
    """Measures the ways, each in processes of its own, or is a worker of one of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(f"RESULT {json.dumps(measured(*WAYS[options.worker]))}", flush=True)
    else:
        print(table({way: run(way) for way in options.ways}))


def run(way: str) -> dict[str, float]:
    """Returns the larger numbers of the two workers."""
    return turns.largest(turns.on_workers(way, WORKERS, __file__, "--worker", way), WORKERS)


def table(results: dict[str, dict[str, float]]) -> str:
    """Returns the numbers as Markdown."""
    rows = [["way", "model", "peak", "of tensors", "optimizer's state"], ["---"] * 5]
    for way, result in results.items():
        model, _ = WAYS[way]
        about = f"{model.parameters / 1e6:.1f} M parameters, {model.examples} examples a worker"
        numbers = [f"{result[name]:.0f}" for name in ("peak", "tensors", "optimizer")]
        rows.append([TITLES[way], about, *numbers])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def measured(model: Model, how: dict[str, Any]) -> dict[str, float]:
    """Trains for some steps; returns this worker's peak and its optimizer's state, in MiB."""
    import keras
    import numpy as np

    import strategies

    accumulate, remat = how.get("accumulate", 1), how.get("remat")
    reduction = strategies.ReductionOptions(mode=how.get("mode", "all_reduce"))
    strategy = strategies.from_tf_config(options=reduction)
    keras.ops.ones([8, 8]).numpy()
    before = turns.memory("VmRSS")
    with strategy.scope(), keras.RematScope(mode="activations" if remat == "activations" else None):
        stack = network(keras, model, remat == "block")
        optimizer = keras.optimizers.Adam(
            1e-4, gradient_accumulation_steps=accumulate if accumulate > 1 else None
        )
        stack.compile(optimizer, "mse")
    batch = model.examples * WORKERS // accumulate
    x = np.random.default_rng(0).normal(size=[batch * STEPS * accumulate, model.width])
    x = x.astype("float32")
    losses = stack.fit(x, x[:, :1], batch_size=batch, shuffle=False, verbose=0).history["loss"]
    if stack.count_params() != model.parameters or not np.isfinite(losses).all():
        raise RuntimeError(f"{stack.count_params()} parameters, losses {losses}")
    strategies.verify_equal(strategy, stack.variables)
    return {
        "peak": stack.peak - before,
        "tensors": stack.tensors / MIB,
        "optimizer": state_bytes(optimizer) / MIB,
    }


def network(keras: Any, model: Model, remat: bool) -> Any:
    """Returns the model, which notes the process's memory at the end of training."""
    import tensorflow as tf

    class Block(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(model.width, activation="gelu")

        def build(self, shape: Any) -> None:
            self.dense.build(shape)
            self.built = True

        def call(self, x: Any) -> Any:
            inner = keras.remat(self.dense) if remat else self.dense
            return x + inner(x)

    class Stack(keras.Sequential):
        peak = tensors = 0.0

        # At once: what is asked of the model later makes copies.
        def fit(self, *args: Any, **options: Any) -> Any:
            history = super().fit(*args, **options)
            self.peak = turns.memory("VmHWM")
            self.tensors = tf.config.experimental.get_memory_info("CPU:0")["peak"]
            return history

    blocks = [Block() for _ in range(model.blocks)]
    return Stack([keras.layers.InputLayer([model.width]), *blocks, keras.layers.Dense(1)])


def state_bytes(optimizer: Any) -> int:
    """Returns the bytes that this worker holds of an optimizer's variables."""
    held = [getattr(variable, "value", variable) for variable in optimizer.variables]
    parts = [part for variable in held for part in getattr(variable, "parts", [variable])]
    return sum(part.shape.num_elements() * part.dtype.size for part in parts)


if __name__ == "__main__":
    main()
