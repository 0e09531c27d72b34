"""Trains the click model by Paddle Fleet's parameter servers, in its static graph.

ctr_paddle.py sgd|adam async|geo WORKERS SERVERS [--mkl-as-installed]

This process starts the workers and servers, and ends them. Rows are in memory before they are
trained on by `train_from_dataset`, Paddle's fastest way.

Paddle multiplies matrices by Intel's MKL, which takes its slowest path where the processor is not
one of Intel's. So MKL is told that it is, unless --mkl-as-installed is given.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from ctr_data import (
    BATCHES,
    CATEGORIES,
    HIDDEN_LAYERS,
    INTEGERS,
    ROWS,
    STEPS,
    TABLE_ROWS,
    UNITS,
    WARM_UP,
    WIDTH,
    batches,
    check_loss,
    collect_garbage,
)

GEO_STEPS = 100  # between two exchanges, as this package's


def make_model(paddle: Any) -> tuple[list[Any], Any]:
    """Returns the inputs and the loss, of static graphs."""
    logarithms = paddle.static.data("logarithms", [None, INTEGERS], "float32")
    ids = paddle.static.data("ids", [None, CATEGORIES], "int64")
    labels = paddle.static.data("labels", [None, 1], "float32")
    rows = paddle.static.nn.embedding(ids, size=[TABLE_ROWS, WIDTH], is_sparse=True)
    x = paddle.concat([logarithms, paddle.reshape(rows, [-1, CATEGORIES * WIDTH])], axis=1)
    for _ in range(HIDDEN_LAYERS):
        x = paddle.static.nn.fc(x, UNITS, activation="relu")
    logits = paddle.static.nn.fc(x, 1)
    losses = paddle.nn.functional.binary_cross_entropy_with_logits(logits, labels)
    return [logarithms, ids, labels], paddle.mean(losses)


def write(path: Path) -> dict[str, np.ndarray]:
    """Writes the rows in Paddle's format, and returns the first batch."""
    logarithms, ids, labels = batches()
    rows = zip(
        logarithms.reshape(-1, INTEGERS).tolist(),
        ids.reshape(-1, CATEGORIES).tolist(),
        labels.reshape(-1, 1).tolist(),
        strict=True,
    )
    with path.open("w") as file:
        for row in rows:
            file.write(" ".join(f"{len(each)} {' '.join(map(str, each))}" for each in row) + "\n")
    return {"logarithms": logarithms[0], "ids": ids[0], "labels": labels[0]}


def train(name: str, mode: str) -> None:
    """Is a server, or a worker of which the first prints the result."""
    import paddle
    from paddle.distributed import fleet

    paddle.enable_static()
    fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
    options = fleet.DistributedStrategy()
    options.a_sync = True
    if mode == "geo":
        options.a_sync_configs = {"k_steps": GEO_STEPS}
    inputs, loss = make_model(paddle)
    update = {"sgd": paddle.optimizer.SGD(0.1), "adam": paddle.optimizer.Adam(0.001)}[name]
    fleet.distributed_optimizer(update, options).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    program = paddle.static.default_main_program()
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    with tempfile.TemporaryDirectory() as directory:
        counts = [-(-count // BATCHES) for count in (WARM_UP, STEPS)]
        files = [Path(directory) / str(number) for number in range(max(counts))]
        first = write(files[0])
        for other in files[1:]:
            os.link(files[0], other)
        for count in counts:
            rows = paddle.distributed.InMemoryDataset()
            rows.init(batch_size=ROWS, thread_num=1, pipe_command="cat", use_var=inputs)
            rows.set_filelist(list(map(str, files[:count])))
            rows.load_into_memory()
            steps = rows.get_memory_data_size() // ROWS
            collect_garbage()
            begin = time.perf_counter()
            executor.train_from_dataset(program, rows, thread=1)
            taken = time.perf_counter() - begin
    (value,) = executor.run(program, feed=first, fetch_list=[loss])
    check_loss(float(value))
    if fleet.worker_index() == 0:
        samples = steps * ROWS * fleet.worker_num() / taken
        print(f"RESULT {json.dumps({'samples/s': samples})}", flush=True)
    fleet.stop_worker()


def main() -> None:
    name, mode, workers, servers = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if "TRAINING_ROLE" in os.environ:
        train(name, mode)
        return
    with tempfile.TemporaryDirectory() as directory:
        is_as_installed = "--mkl-as-installed" in sys.argv
        run(workers, servers, {} if is_as_installed else mkl_of_intel(Path(directory)))


def mkl_of_intel(directory: Path) -> dict[str, str]:
    """Returns environment variables by which MKL takes the processor for one of Intel's.

    They preload a library with MKL's test for this, which is made in the directory.
    """
    library, names = directory / "intel.so", ("mkl_serv_intel_cpu", "mkl_serv_intel_cpu_true")
    source = "".join(f"int {name}(void) {{ return 1; }}\n" for name in names)
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    return {"LD_PRELOAD": str(library)}


def run(workers: int, servers: int, variables: dict[str, str]) -> None:
    """Runs workers and servers with additional environment variables."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers + servers)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    addresses = [f"127.0.0.1:{port}" for port in ports]
    common = {
        **os.environ,
        **variables,
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(addresses[workers:]),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(addresses[:workers]),
        "PADDLE_TRAINERS_NUM": str(workers),
        "POD_IP": "127.0.0.1",
        "CPU_NUM": "1",
    }
    started = []
    with tempfile.TemporaryDirectory() as directory:  # Paddle leaves files where it runs
        for number, port in enumerate(ports):
            is_worker = number < workers
            own = {"PADDLE_TRAINER_ID": str(number)} if is_worker else {}
            role = "TRAINER" if is_worker else "PSERVER"
            environ = {**common, **own, "TRAINING_ROLE": role, "PADDLE_PORT": str(port)}
            command = [sys.executable, Path(__file__).resolve(), *sys.argv[1:]]
            started.append(subprocess.Popen(command, env=environ, cwd=directory))
        try:
            codes = [process.wait() for process in started[:workers]]
        finally:
            for process in started:
                process.kill()
                process.wait()
    if any(codes):
        sys.exit(f"Paddle's workers end with 0. Received: {codes}.")


if __name__ == "__main__":
    main()
