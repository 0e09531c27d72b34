"""The columns of the compatibility tables: strategies, and what is known not to work with ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
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
      is_in_step: whether workers take each step together, so that their numbers are the same, and
        those of one process.
      tables: the tables that have this column.
    """

    name: str
    title: str
    make: str
    options: dict[str, Any] = field(default_factory=dict)
    workers: int = 1
    servers: int = 0
    cpus: int = 1
    environ: dict[str, str] = field(default_factory=dict)
    is_in_step: bool = True
    tables: tuple[str, ...] = ("models", "rows")

    @property
    def is_ours(self) -> bool:
        """Whether it comes from this package."""
        return self.make.startswith("strategies.")


ALONE = Strategy("alone", "No strategy", "tf.distribute.get_strategy", tables=("rows",))
MODELS, ROWS = ("models",), ("rows",)
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
    *(
        Strategy(
            f"servers-{mode}", f"`ParameterServerStrategy`, `{mode}`, 2 workers, 1 server",
            "strategies.ParameterServerStrategy", {"mode": mode, **options}, workers=2, servers=1,
            is_in_step=False, tables=ROWS,
        )
        for mode, options in {"async": {}, "half_async": {}, "geo": {"geo_steps": 2}}.items()
    ),
    Strategy(
        "stock-mirrored", "stock `MirroredStrategy`, 2 replicas",
        "tf.distribute.MirroredStrategy", {"devices": CPUS}, cpus=2, tables=MODELS,
    ),
    Strategy(
        "stock-multi-worker", "stock `MultiWorkerMirroredStrategy`, 2 workers",
        "tf.distribute.MultiWorkerMirroredStrategy", workers=2, tables=MODELS,
    ),
    Strategy(
        "stock-central", "stock `CentralStorageStrategy`, 2 replicas",
        "tf.distribute.experimental.CentralStorageStrategy",
        {"compute_devices": CPUS, "parameter_device": "CPU:0"}, cpus=2, tables=MODELS,
    ),
]  # fmt: skip
STRATEGIES = {column.name: column for column in [ALONE, *COLUMNS]}
TABLES = {"models": "", "rows": "`DistributedEmbedding`, "}
KERAS = {"keras": "Keras 3", "tf_keras": "tf_keras"}


def cached_column(cache: Path, table: str, keras: str, strategy: str) -> Path:
    """Returns the file that keeps what was measured of a column."""
    return cache / f"{table}-{keras}-{strategy}.json"


# What does not work with ours today: Keras, strategy, cell -> a part of the error.
NO_XLA_ACROSS_DEVICES = "XLA cannot compile a step that uses several devices"
NO_XLA_ACROSS_WORKERS = "Received: jit_compile=True"
NO_MERGE_IN_CONDITIONS = "`merge_call` called while defining a new graph"
NO_DENSE_GRADIENTS_OF_ROWS = "the gradient of an embedding must be tf.IndexedSlices"
NO_GLOBAL_NORM = "global_clipnorm cannot be used with a DistributedEmbedding on several workers"
NO_OWN_OPTIMIZERS_ON_SERVERS = "on parameter servers cannot have an optimizer of their own"
NO_EVICTION_IN_GEO_STEPS = "Rows that workers train themselves cannot be evicted during training"
EXPECTED: dict[tuple[str, str, str], str] = {
    ("tf_keras", "multi-worker", "`global_clipnorm`"): NO_GLOBAL_NORM,
    ("tf_keras", "multi-worker-tensorflow", "`global_clipnorm`"): NO_GLOBAL_NORM,
    ("tf_keras", "multi-worker-2x2", "`global_clipnorm`"): NO_GLOBAL_NORM,
    **{
        ("keras", strategy, "`global_clipnorm`"): NO_DENSE_GRADIENTS_OF_ROWS
        for strategy in (
            "mirrored",
            "central",
            "multi-worker",
            "multi-worker-tensorflow",
            "multi-worker-2x2",
        )
    },
    **{
        (
            keras,
            f"servers-{mode}",
            "Several tables, one of them with an optimizer of its own",
        ): NO_OWN_OPTIMIZERS_ON_SERVERS
        for keras in KERAS
        for mode in ("sync", "async", "half_async", "geo")
    },
    **{
        (keras, "servers-geo", cell): NO_EVICTION_IN_GEO_STEPS
        for keras in KERAS
        for cell in ("Eviction of old rows, every second step", "A full table that evicts rows")
    },
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
