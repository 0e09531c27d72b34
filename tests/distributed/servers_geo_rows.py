"""Rows that workers train themselves in mode "geo": the rule of an exchange, in closed form.

servers_geo_rows.py keras|tf_keras REPLICAS CACHE|used

Each step of a worker takes a part of the rows of ids of its own and of an id of all workers, so
that what a step does depends on the step before it. If rows are kept, those that were used or a
number that is larger than what steps use, only the checks of what it changes are made.
"""

import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies
from strategies.embedding.lookup import row_exchange
from tests.support.assertions import raises
from tests.support.checks import run_checks
from tests.support.embeddings import all_rows, embedding_of

api, replicas = sys.argv[1], int(sys.argv[2])
cache = None if sys.argv[3] == "used" else int(sys.argv[3])
keras = importlib.import_module(api)
GEO_STEPS = 4
row_exchange.CHUNK_BYTES = 150  # one or two rows, so that an exchange takes several messages
strategy = strategies.from_tf_config(
    mode="geo", geo_steps=GEO_STEPS, geo_row_cache=cache, num_replicas=replicas
)
rank, size = strategy.extended.workers.rank, strategy.extended.workers.size
COMMON = -(2**63)
OWN = [100 + worker for worker in range(size)]
IDS = np.array([COMMON, *OWN])
# Of the row, a step takes this part for each occurrence of the id; exact in float32.
RATE = [2.0**-4 * (worker + 1) for worker in range(size)]
MOMENTUM = 0.5


class Loop:
    """A layer, and a loop of one's own that trains it."""

    def __init__(self, momentum=0.0, **settings):
        settings = {"embeddings_initializer": "ones", **settings}
        with strategy.scope():
            self.layer = embedding_of(api)(3, **settings)
            self.layer.build()
            self.optimizer = keras.optimizers.SGD(RATE[rank], momentum=momentum)
            if api == "keras":
                self.optimizer.build(self.layer.trainable_variables)
        (self.weight,) = self.layer.trainable_variables
        self.step = tf.function(self._step, input_signature=[tf.TensorSpec([None], tf.int64)])

    def _step(self, ids):
        def replica(ids):
            with tf.GradientTape() as tape:
                # The sum over the replicas is that of one.
                loss = tf.reduce_sum(self.layer(ids, training=True) ** 2) / (2 * replicas)
                loss += sum(self.layer.losses) / replicas
            self.optimizer.apply_gradients([(tape.gradient(loss, self.weight), self.weight)])

        strategy.run(replica, args=(ids,))

    def train(self, steps, ids=None):
        for step in range(steps):
            self.step(tf.constant([COMMON, OWN[rank], COMMON] if ids is None else ids, tf.int64))
            if step == 0:
                # No worker sends its changes before all have fetched the rows.
                strategy.extended.workers.all_gather(tf.constant([0]))

    def on_servers(self):
        """Returns the first number of the row of each id of `IDS`, when all workers are done."""
        strategies.barrier(strategy)
        found, rows = all_rows(strategy, self.layer)
        strategies.barrier(strategy)
        values = dict(zip(found.tolist(), rows[:, 0].tolist(), strict=True))
        return np.array([values.get(each, 1.0) for each in IDS.tolist()])


def factors(steps):
    """Returns by what each worker's steps multiply the row of each id of `IDS`, [workers, ids]."""
    result = np.ones([size, len(IDS)])
    for worker in range(size):
        result[worker, 0] = (1 - 2 * RATE[worker]) ** steps
        result[worker, 1 + worker] = (1 - RATE[worker]) ** steps
    return result


def check_rows_of_one_and_of_all_workers():
    """A round is ended by a barrier, at which all workers exchange and forget rows."""
    if cache != 0:
        return
    loop, old = Loop(), np.ones(len(IDS))
    for steps in (2, GEO_STEPS - 2, GEO_STEPS, 1):  # no other exchange is due in between
        loop.train(steps)
        local = old * factors(steps)
        # Until an exchange, a worker has its own rows, and of the other rows those of the servers.
        np.testing.assert_allclose(loop.layer(IDS[:1]).numpy()[0], local[rank, 0], rtol=1e-6)
        old = old + np.sum(local - old, axis=0) / size
        np.testing.assert_allclose(loop.on_servers(), old, rtol=1e-6)
    found, rows = all_rows(strategy, loop.layer)
    np.testing.assert_array_equal(found, np.sort(IDS))
    np.testing.assert_allclose(rows[:, 1:], old[np.argsort(IDS)][:, np.newaxis] * [1, 1], rtol=1e-6)


def check_what_is_kept_of_a_row():
    """Workers exchange rows one after the other, so that it is known what each of them gets."""
    if cache == 0:
        return
    loop = Loop()
    on_servers = np.ones(len(IDS))
    bases, kept = np.ones([size, len(IDS)]), np.zeros([size, len(IDS)])
    for steps in (2, GEO_STEPS - 2, GEO_STEPS, 1):
        loop.train(steps)
        local = (bases + kept) * factors(steps)
        found = loop.layer(IDS[[0, 1 + rank]]).numpy()[:, 0]
        np.testing.assert_allclose(found, local[rank, [0, 1 + rank]], rtol=1e-6)
        for worker in range(size):
            if worker == rank:
                strategy.extended.drain()
            strategy.extended.workers.all_gather(tf.constant([0]))
            changed = local[worker] - bases[worker]
            on_servers = on_servers + changed / size
            bases[worker], kept[worker] = on_servers, changed * (1 - 1 / size)
        np.testing.assert_allclose(loop.on_servers(), on_servers, rtol=1e-6)
    # Rows that are not used stay as long as there is room, and get what others do to them.
    strategies.barrier(strategy)
    assert len(local_rows(loop).all()[0]) == 2
    for who in ([0], range(1, size)):
        loop.train(1, [COMMON if rank == 0 else 5] if rank in who else [])
        strategies.barrier(strategy)
    used = {5} if rank > 0 else set()
    expected = used if cache is None else used | {COMMON, OWN[rank]}
    assert set(local_rows(loop).all()[0][:, 1].tolist()) == expected
    changed = (bases[0, 0] + kept[0, 0]) * (1 - RATE[0]) - bases[0, 0]
    common = on_servers[0] + changed / size
    if cache is not None:
        common += changed * (1 - 1 / size) if rank == 0 else kept[rank, 0]
    np.testing.assert_allclose(loop.layer(IDS[:1]).numpy()[0], common, rtol=1e-6)
    # They are forgotten when others may have set them.
    loop.layer.set_rows(IDS[:1], np.full([1, 3], 8.0, np.float32))
    assert not len(local_rows(loop).all()[0])
    np.testing.assert_array_equal(loop.layer(IDS[:1]).numpy(), 8.0)


def local_rows(loop):
    ((_, lookup),) = loop.layer.tables._lookups.items()
    return lookup.router._local


def check_an_exchange_is_due_every_geo_steps():
    if cache != 0:
        return
    loop = Loop()
    rows = local_rows(loop)
    for step in range(1, 3 * GEO_STEPS + 1):
        loop.train(1, [COMMON, 1000 * (1 + rank) + step])
        # The row of all steps and one of each since the last exchange.
        assert len(rows.all()[0]) == 1 + (step - 1) % GEO_STEPS + 1, step
    # Places of rows that were exchanged are used again.
    assert int(rows.store.view.length.numpy()) == 1 + GEO_STEPS
    strategies.barrier(strategy)
    assert not len(rows.all()[0])
    (counted,) = loop.layer.statistics().values()
    assert counted["rows"] == counted["new"] == 1 + 3 * GEO_STEPS * size, counted
    assert counted["unique"] == 2 * 3 * GEO_STEPS * size, counted
    assert counted["lookups"] == replicas * counted["unique"], counted


def check_slot_variables_go_with_the_rows():
    if cache != 0:
        return
    loop = Loop(momentum=MOMENTUM)
    rows, velocities = np.ones(size + 1), np.zeros(size + 1)
    strategies.barrier(strategy)
    for steps in (2, GEO_STEPS - 2):
        all_local, all_slots = [], []
        for worker in range(size):
            local, slots = rows.copy(), velocities.copy()
            for _ in range(steps):
                for place, times in ((0, 2), (1 + worker, 1)):
                    slots[place] = MOMENTUM * slots[place] - RATE[worker] * times * local[place]
                    local[place] += slots[place]
            all_local.append(local)
            all_slots.append(slots)
        loop.train(steps)
        rows = rows + np.sum(np.array(all_local) - rows, axis=0) / size
        # A worker that has not used a row does not change its slot variable.
        used = np.ones([size, size + 1], bool)
        used[:, 1:] = np.eye(size, dtype=bool)
        if size == 1:
            velocities = all_slots[0]
        strategies.barrier(strategy)
        np.testing.assert_allclose(loop.on_servers(), rows, rtol=1e-5)
        arrays = loop.layer.snapshot_rows()
        order = np.argsort(arrays["0/ids"])
        found = arrays["0/slot/momentum" if api == "keras" else "0/slot/m"][order][:, 0]
        expected = velocities.copy()
        for place in range(1, size + 1):
            own = all_slots[place - 1][place]
            expected[place] = velocities[place] + (own - velocities[place]) / size
        np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-5)
        # Of the row of all workers, the order of their exchanges matters.
        low = min(each[0] for each in all_slots) - 1e-6
        assert low <= found[0] <= 0, (found, all_slots)
        velocities = np.concatenate([found[:1], expected[1:]])


def check_an_id_is_admitted_by_all_its_occurrences():
    loop = Loop(admission=strategies.Admission(count=3 * size * replicas), unseen="zeros")
    ids, admitted = [7, 1000 + rank], [7, 1000] if size == 1 else [7]
    for step in range(1, 5):
        loop.train(1, ids)
        strategies.barrier(strategy)
        found = all_rows(strategy, loop.layer)[0].tolist()
        assert found == ([] if step < 3 else admitted), (step, found)
    if size == 1:
        return
    # The fourth step has trained it on all workers, and the third on the last of them.
    row = loop.layer(np.array([7])).numpy()[0, 0]
    assert 0 < row < 1, row
    np.testing.assert_array_equal(loop.layer(np.array([1000])).numpy(), 0.0)


def check_each_row_of_a_step_is_penalized_once():
    penalty = 0.25
    loop = Loop(l2=penalty)
    loop.train(1)
    local = np.ones([size, size + 1])
    for worker in range(size):
        local[worker, 0] -= RATE[worker] * (2 + 2 * penalty)
        local[worker, 1 + worker] -= RATE[worker] * (1 + 2 * penalty)
    np.testing.assert_allclose(loop.on_servers(), 1 + np.sum(local - 1, axis=0) / size, rtol=1e-6)


def check_rows_are_saved_as_they_were_trained():
    loop = Loop(name="table", eviction=strategies.Eviction(count=6 * replicas))
    loop.train(3)
    directory = "rows"
    loop.layer.save_rows(directory)
    old = 1 + np.sum(factors(3) - 1, axis=0) / size
    with strategy.scope():
        again = embedding_of(api)(3, name="table")
        again.build()
    again.load_rows(directory)
    np.testing.assert_allclose(again(IDS).numpy()[:, 0], old, rtol=1e-6)
    # A worker counts occurrences of rows that it has; the servers learn of them at an exchange.
    assert loop.layer.evict() == {"table": size}
    assert all_rows(strategy, loop.layer)[0].tolist() == [COMMON]
    loop.layer.set_rows(IDS[:1], np.full([1, 3], 8.0, np.float32))
    loop.train(1, [COMMON])
    expected = 8 * (1 - np.mean(RATE))
    np.testing.assert_allclose(loop.on_servers()[0], expected, rtol=1e-6)


def check_several_steps_in_a_function():
    """And slot variables that are created while its graph is built, under tf_keras."""
    if cache != 0:
        return
    loop = Loop(momentum=MOMENTUM)

    @tf.function
    def several(ids):
        for _ in range(2 * GEO_STEPS + 1):
            loop._step(ids)

    several(tf.constant([OWN[rank]], tf.int64))
    row, slot = 1.0, 0.0
    for step in range(2 * GEO_STEPS + 1):
        if step % GEO_STEPS == 0:
            base, kept = row, slot
        slot = MOMENTUM * slot - RATE[rank] * row
        row += slot
        if step % GEO_STEPS == GEO_STEPS - 1 or step == 2 * GEO_STEPS:
            row, slot = base + (row - base) / size, kept + (slot - kept) / size
    strategies.barrier(strategy)
    np.testing.assert_allclose(loop.layer(np.array([OWN[rank]])).numpy(), row, rtol=1e-5)


def check_what_is_refused():
    for settings in (
        {"input_dim": 8, "overflow": "evict"},
        {"eviction": strategies.Eviction(age=5, every=2)},
    ):
        with raises(ValueError, "Pass geo_rows='servers'"), strategy.scope():
            embedding_of(api)(3, **settings)
    with raises(ValueError, "Omit them, or start the job without --ps"), strategy.scope():
        embedding_of(api)(3, optimizer="sgd")


def check_fit_of_one_worker_is_that_of_one_process():
    """With one worker, each exchange gives the servers what the worker has."""
    if size > 1:
        return
    random = np.random.default_rng(0)
    ids, labels = random.integers(0, 30, [64, 2]), random.normal(size=[64, 1]).astype("float32")

    def fitted(optimizer, dtype, features):
        tables = {}
        if features:
            one, two = (strategies.TableConfig(name, 3, row_dtype=dtype) for name in "ab")
            tables = {"features": {"x": strategies.FeatureConfig(one),
                                   "y": strategies.FeatureConfig(two)}}  # fmt: skip
        keras.utils.set_random_seed(1)
        inputs = keras.Input([2], dtype="int64")
        if features:
            layer = embedding_of(api)(**tables, name="table")
            rows = layer({"x": inputs, "y": inputs})
            rows = keras.layers.Concatenate()([rows["x"], rows["y"]])
        else:
            layer = embedding_of(api)(3, name="table", row_dtype=dtype)
            rows = layer(inputs)
        output = keras.layers.Dense(1)(keras.layers.Flatten()(rows))
        model = keras.Model(inputs, output)
        model.compile(optimizer(), "mse")
        model.fit(ids, labels, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return model, layer

    of_keras = keras.optimizers
    for optimizer, dtype, features in [
        (lambda: of_keras.SGD(0.1, momentum=0.9), "float32", False),
        (lambda: of_keras.Adam(0.05), "float32", True),
        (lambda: of_keras.SGD(0.1), "bfloat16", False),
    ]:
        with strategy.scope():
            model, layer = fitted(optimizer, dtype, features)
        alone, other = fitted(optimizer, dtype, features)
        tolerance = 0.02 if dtype == "bfloat16" else 1e-5
        for table in layer.specs.initial:
            found, rows = layer.rows(table)
            expected_ids, expected = other.rows(table)
            np.testing.assert_array_equal(found, expected_ids)
            np.testing.assert_allclose(rows, expected, atol=tolerance)
        np.testing.assert_allclose(model.predict(ids, verbose=0), alone.predict(ids, verbose=0),
                                   atol=10 * tolerance)  # fmt: skip


if __name__ == "__main__":
    run_checks(globals())
