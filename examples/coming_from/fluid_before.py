"""A script of PaddlePaddle Fluid 1.x; fluid_after.py does the same with a strategy.

It is to be read, not run: Fluid 1.x is not installed with this package, and has no release for
Python 3.10 or later. So there is no output to show, and no test runs it; one checks its syntax.
Written after Fluid 1.8's reference of DistributeTranspiler, layers and Executor.

    $ TRAINING_ROLE=PSERVER POD_IP=127.0.0.1 PADDLE_PORT=6174 python fluid_before.py
    $ TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=0 python fluid_before.py
    $ TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=1 python fluid_before.py
"""

import os

import numpy as np
import paddle
import paddle.fluid as fluid

DICT_SIZE, WIDTH, BATCH_SIZE = 1000001, 16, 64
TRAINERS = 2
PSERVERS = os.getenv("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:6174")
trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))


def reader():
    """Yields (three ids, clicked or not): ids below 300 are clicked on."""
    random = np.random.RandomState(1)
    for number in range(4000):
        clicked = random.randint(2)
        ids = random.randint(0, 300, 3) if clicked else random.randint(300, 1000, 3)
        if number % TRAINERS == trainer_id:
            yield ids.astype("int64").reshape(3, 1), np.array([clicked], "float32")


ids = fluid.layers.data(name="ids", shape=[3, 1], dtype="int64")
click = fluid.layers.data(name="click", shape=[1], dtype="float32")
rows = fluid.layers.embedding(
    input=ids, size=[DICT_SIZE, WIDTH], is_sparse=True, is_distributed=True
)
hidden = fluid.layers.fc(input=fluid.layers.reduce_sum(rows, dim=1), size=32, act="relu")
logit = fluid.layers.fc(input=hidden, size=1)
loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(x=logit, label=click))
fluid.optimizer.Adagrad(learning_rate=0.1).minimize(loss)

config = fluid.DistributeTranspilerConfig()
transpiler = fluid.DistributeTranspiler(config=config)
transpiler.transpile(trainer_id, pservers=PSERVERS, trainers=TRAINERS, sync_mode=False)
exe = fluid.Executor(fluid.CPUPlace())

if os.environ["TRAINING_ROLE"] == "PSERVER":
    endpoint = os.environ["POD_IP"] + ":" + os.environ["PADDLE_PORT"]
    program, startup = transpiler.get_pserver_programs(endpoint)
    exe.run(startup)
    exe.run(program)  # until it is killed
else:
    program = transpiler.get_trainer_program()
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder(place=fluid.CPUPlace(), feed_list=[ids, click])
    batches = paddle.batch(reader, batch_size=BATCH_SIZE)
    for epoch in range(3):
        losses = [
            exe.run(program, feed=feeder.feed(batch), fetch_list=[loss])[0] for batch in batches()
        ]
        print("epoch", epoch, "loss", np.mean(losses))
    if trainer_id == 0:
        fluid.io.save_inference_model("fluid_model", ["ids"], [logit], exe)
    exe.close()  # tells the servers that this trainer is done
