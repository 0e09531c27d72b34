"""Random numbers of replicas, and long training; the checks stand in tests/distributed."""

import keras
import pytest
import tensorflow as tf

import strategies
from strategies.core import seeds as randomness
from tests.support.check_jobs import checks_of

SLOW = pytest.mark.slow
CHECKS = pytest.mark.parametrize(
    "check",
    checks_of(
        "in_step.py",
        slow=[
            "after_200_steps_all_replicas_are_equal",
            "each_replica_that_is_a_function_drops_units_of_its_own",
            "restored_replicas_draw_the_same_numbers_again",
            "replicas_of_a_model_that_is_loaded_draw_their_own_numbers",
        ],
    ),
)


@pytest.mark.parametrize(
    ("api", "workers", "replicas"),
    [
        ("keras", 2, 1),
        *(
            pytest.param(*case, marks=SLOW)
            for case in [
                ("keras", 2, 2),
                ("tf_keras", 3, 1),
            ]
        ),
    ],
)
@CHECKS
def test_replicas_stay_equal_and_draw_their_own_numbers(run_check, check, api, workers, replicas):
    run_check(check, api, replicas, workers=workers)


@SLOW
@CHECKS
def test_replicas_stay_equal_on_tensorflows_collectives(job, run_check, check):
    job.hide_horovod()
    run_check(check, "keras")


def test_outside_of_replicas_a_seed_is_as_it_was_written():
    state = randomness.SeedState(replica=3, initial_value=tf.constant([7, 0], tf.int64))
    assert state.numpy().tolist() == [7, 0]
    state.assign([8, 1])
    assert state.numpy().tolist() == [8, 1]


def test_no_replica_draws_what_another_one_has_drawn():
    strategy = strategies.MirroredStrategy(num_replicas=2)
    with strategy.scope():
        generator = keras.random.SeedGenerator(7)

    def draw():
        return keras.random.uniform([], seed=generator)

    drawn = []
    for count in range(0, 4096, 64):
        generator.state.assign([7, count])
        drawn += [float(each) for each in strategy.experimental_local_results(strategy.run(draw))]
    assert len(set(drawn)) == len(drawn)
    assert generator.state.numpy().tolist() == [7, count + 1]


@pytest.mark.parametrize(("rank", "is_own"), [(0, False), (1, True)])
def test_a_graph_has_its_seed_again_afterwards(monkeypatch, rank, is_own):
    monkeypatch.setattr(randomness, "global_seed", lambda: 5)
    with tf.Graph().as_default() as graph:
        graph.seed = 5
        with randomness.worker_seed_scope(rank):
            assert (graph.seed != 5) == is_own
        assert graph.seed == 5


@pytest.mark.parametrize(("own", "warnings"), [(43, 1), (42, 0), (None, 0)])
def test_the_first_workers_seed_is_that_of_all(own, warnings, caplog):
    try:
        tf.random.set_seed(own)
        randomness.share_seed(lambda seed: 42)
        assert randomness.global_seed() == 42
        tf.random.set_seed(own)
        randomness.share_seed(lambda seed: seed)  # as on the first worker
        assert randomness.global_seed() == own if own else randomness.global_seed() is not None
    finally:
        tf.random.set_seed(None)
    assert caplog.text.count("All workers must have the same random seed") == warnings
