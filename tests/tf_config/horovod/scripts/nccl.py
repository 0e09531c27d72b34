"""Prints what the Horovod that is imported can do, and a sum over two workers."""

import json

import horovod
import tensorflow as tf
from tensorflow.python.framework import kernels

import strategies
from strategies.collectives.horovod import load

OPERATIONS = ("Allreduce", "GroupedAllreduce", "Allgather", "Broadcast", "Alltoall")

strategy = strategies.MultiWorkerMirroredStrategy(communication="horovod")
rank = strategies.worker_rank(strategy)


def step():
    return tf.distribute.get_replica_context().all_reduce(
        "SUM", tf.constant([1.0, 10]) * (rank + 1)
    )


found = {
    "file": horovod.__file__,
    "nccl": load().nccl_built(),
    "sum": strategy.run(step).numpy().tolist(),
    "kernels": {
        name: sorted(
            kernel.device_type
            for kernel in kernels.get_registered_kernels_for_op(f"Horovod{name}").kernel
        )
        for name in OPERATIONS
    },
}
print(json.dumps(found), flush=True)
