"""Trains with a server whose answers are lost now and then; prints the SHA-256 of the weights.

servers_lost_answers.py MODE LOST

Everything goes through a thread that forwards it. From the tenth step on, in every third step and
LOST times in all, it drops the answer to a push or to a lookup, and closes the connection.
"""

import contextlib
import hashlib
import json
import os
import socket
import sys
import threading
import time

mode, to_lose = sys.argv[1], int(sys.argv[2])
config = json.loads(os.environ["TF_CONFIG"])
host, port = config["cluster"]["ps"][0].rsplit(":", 1)
LARGE = 30_000  # bytes of a push, but not of a lookup


class Forwarder:
    """Forwards connections to the server; loses the answer to a request when told to."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.wanted = None  # the least and the largest bytes of the request
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near, _ = self.listener.accept()
            try:
                far = socket.create_connection((host, int(port)))
            except OSError:  # the server does not listen yet
                near.close()
                continue
            sent = [0]
            for arguments in ((near, far, sent, False), (far, near, sent, True)):
                threading.Thread(target=self._forward, args=arguments, daemon=True).start()

    def _forward(self, source, target, sent, is_answer):
        try:
            while data := source.recv(1 << 20):
                if is_answer:
                    if self.wanted and self.wanted[0] <= sent[0] <= self.wanted[1]:
                        # What arrives first may be no answer yet; the request goes on meanwhile.
                        time.sleep(0.5)
                        self.wanted, self.lost = None, self.lost + 1
                        break
                    sent[0] = 0
                else:
                    sent[0] += len(data)
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


forwarder = Forwarder()
config["cluster"]["ps"] = [f"127.0.0.1:{forwarder.port}"]
os.environ["TF_CONFIG"] = json.dumps(config)

import keras  # noqa: E402
import numpy as np  # noqa: E402

import strategies  # noqa: E402

keras.utils.set_random_seed(7)
strategy = strategies.from_tf_config(mode=mode, **({"geo_steps": 2} if mode == "geo" else {}))
random = np.random.default_rng(0)
ids = random.integers(0, 200, [30 * 16, 4])
x = {"ids": ids, "numbers": random.normal(size=[len(ids), 100]).astype("float32")}
y = random.normal(size=[len(ids), 1]).astype("float32")


class Lose(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        # From the tenth step on, when nothing is added to graphs any more.
        is_due = batch > 9 and batch % 3 == 2
        if is_due and forwarder.lost < to_lose and forwarder.wanted is None:
            forwarder.wanted = (LARGE, 1 << 30) if batch % 2 else (500, LARGE)


with strategy.scope():
    inputs = {
        "ids": keras.Input([4], dtype="int64", name="ids"),
        "numbers": keras.Input([100], name="numbers"),
    }
    embedded = keras.layers.Flatten()(strategies.DistributedEmbedding(2)(inputs["ids"]))
    joined = keras.layers.Concatenate()([embedded, inputs["numbers"]])
    hidden = keras.layers.Dense(100, "relu")(joined)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.01), "mse")
model.fit(x, y, batch_size=16, verbose=0, shuffle=False, callbacks=[Lose()])
(layer,) = (each for each in model.layers if isinstance(each, strategies.DistributedEmbedding))
found, rows = layer.rows()
values = [rows[np.argsort(found)], *(each for each in model.get_weights() if each.ndim)]
digest = hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in values))
print(f"weights {digest.hexdigest()} steps {int(model.optimizer.iterations.numpy())}")
print(f"lost {forwarder.lost}", flush=True)
