"""The columns of the compatibility table: strategies, and what is known not to work with ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Strategy:
    """A column of the table.

    Attributes:
      name: what it is called on the command line.
      title: its heading.
      make: what makes it, by name.
      options: the arguments of `make`.
      workers: how many processes it trains on.
      servers: how many parameter servers it has.
      cpus: logical CPUs made beforehand, for strategies that make none.
      environ: variables for its processes.
    """

    name: str
    title: str
    make: str
    options: dict[str, Any] = field(default_factory=dict)
    workers: int = 1
    servers: int = 0
    cpus: int = 1
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether it comes from this package."""
        return self.make.startswith("strategies.")


ALONE = Strategy("alone", "One process", "tf.distribute.get_strategy")
CPUS = ["CPU:0", "CPU:1"]
COLUMNS = [
    Strategy(
        "mirrored", "`MirroredStrategy`, 2 replicas", "strategies.MirroredStrategy",
        {"num_replicas": 2},
    ),
    Strategy(
        "central", "`CentralStorageStrategy`, 2 replicas", "strategies.CentralStorageStrategy",
        {"num_replicas": 2},
    ),
    Strategy(
        "multi-worker", "`MultiWorkerMirroredStrategy`, 2 workers",
        "strategies.MultiWorkerMirroredStrategy", workers=2,
    ),
    Strategy(
        "multi-worker-tensorflow", "`MultiWorkerMirroredStrategy`, 2 workers on TensorFlow",
        "strategies.MultiWorkerMirroredStrategy", {"communication": "tensorflow"}, workers=2,
    ),
    Strategy(
        "multi-worker-2x2", "`MultiWorkerMirroredStrategy`, 2 workers of 2 replicas",
        "strategies.MultiWorkerMirroredStrategy", {"num_replicas": 2}, workers=2,
    ),
    Strategy(
        "servers-sync", "`ParameterServerStrategy`, `sync`, 2 workers, 1 server",
        "strategies.ParameterServerStrategy", {"mode": "sync"}, workers=2, servers=1,
    ),
    Strategy(
        "stock-mirrored", "stock `MirroredStrategy`, 2 replicas",
        "tf.distribute.MirroredStrategy", {"devices": CPUS}, cpus=2,
    ),
    Strategy(
        "stock-multi-worker", "stock `MultiWorkerMirroredStrategy`, 2 workers",
        "tf.distribute.MultiWorkerMirroredStrategy", workers=2,
    ),
    Strategy(
        "stock-central", "stock `CentralStorageStrategy`, 2 replicas",
        "tf.distribute.experimental.CentralStorageStrategy",
        {"compute_devices": CPUS, "parameter_device": "CPU:0"}, cpus=2,
    ),
]  # fmt: skip
STRATEGIES = {column.name: column for column in COLUMNS}
KERAS = {"keras": "Keras 3", "tf_keras": "tf_keras"}

# What does not work with ours today: Keras, strategy, cell -> a part of the error.
NO_XLA_ACROSS_DEVICES = "XLA cannot compile a step that uses several devices"
NO_XLA_ACROSS_WORKERS = "Received: jit_compile=True"
NO_MERGE_IN_CONDITIONS = "`merge_call` called while defining a new graph"
EXPECTED: dict[tuple[str, str, str], str] = {
    ("keras", "mirrored", "`jit_compile=True`"): NO_XLA_ACROSS_DEVICES,
    ("tf_keras", "mirrored", "`jit_compile=True`"): NO_XLA_ACROSS_DEVICES,
    ("keras", "central", "`jit_compile=True`"): NO_XLA_ACROSS_DEVICES,
    ("tf_keras", "central", "`jit_compile=True`"): NO_XLA_ACROSS_DEVICES,
    ("keras", "multi-worker", "`jit_compile=True`"): NO_XLA_ACROSS_WORKERS,
    ("tf_keras", "multi-worker", "`jit_compile=True`"): NO_XLA_ACROSS_WORKERS,
    ("keras", "multi-worker-tensorflow", "`jit_compile=True`"): NO_XLA_ACROSS_WORKERS,
    ("tf_keras", "multi-worker-tensorflow", "`jit_compile=True`"): NO_XLA_ACROSS_WORKERS,
    ("keras", "multi-worker-2x2", "`jit_compile=True`"): NO_XLA_ACROSS_WORKERS,
    ("tf_keras", "multi-worker-2x2", "`jit_compile=True`"): NO_XLA_ACROSS_WORKERS,
    ("keras", "central", "Gradient accumulation"): NO_MERGE_IN_CONDITIONS,
    ("keras", "servers-sync", "`jit_compile=True`"): NO_XLA_ACROSS_WORKERS,
    ("tf_keras", "servers-sync", "`jit_compile=True`"): NO_XLA_ACROSS_WORKERS,
    ("keras", "servers-sync", "Gradient accumulation"): "use mode='geo'",
}
