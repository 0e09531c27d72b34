"""The L2 penalty of a table; the checks stand in tests/support/penalties.py."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import strategies
from tests.support import penalties
from tests.support.check_jobs import checks_of

SLOW = pytest.mark.slow
REPLICAS = ["CPU:0", "CPU:1"]
APIS = pytest.mark.parametrize("api", [keras, tf_keras], ids=["keras", "tf_keras"])
KINDS = pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda: strategies.MirroredStrategy(REPLICAS),
        lambda: strategies.CentralStorageStrategy(REPLICAS),
    ],
    ids=["alone", "mirrored", "central"],
)


@pytest.mark.in_turn
@APIS
@KINDS
@pytest.mark.parametrize(
    "options", [{}, {"optimizer": "adam"}, {"placement": "replicated"}], ids=str
)
def test_if_a_step_has_all_rows_it_is_that_of_a_regularizer(api, make, options):
    options = {**options}
    if "optimizer" in options:
        options["optimizer"] = api.optimizers.Adam(0.1)
    penalties.check_like_a_regularizer(api, make(), **options)


@pytest.mark.parametrize("replicas", [1, 2])
def test_each_row_is_penalized_once_in_a_step(replicas):
    strategy = strategies.MirroredStrategy(REPLICAS[:replicas])
    penalties.check_each_row_once(keras, strategy, rank=0, in_step=True)


@SLOW  # those of replicas are tested above
@pytest.mark.parametrize(
    ("ps", "arguments"),
    [
        (0, ("workers",)),
        *(
            pytest.param(ps, arguments, marks=SLOW)
            for ps, arguments in [
                (1, ("sync",)),
                (0, ("workers", 2)),
                (2, ("sync", 2)),
                (1, ("half_async",)),
                (1, ("geo",)),
                (1, ("async", 2)),
            ]
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("check", checks_of("penalties.py"))
def test_the_rows_of_several_workers(run_check, check, ps, arguments):
    run_check(check, *arguments, ps=ps)


def test_tables_of_a_group_have_penalties_of_their_own():
    tables = [strategies.TableConfig(name, 2, embeddings_initializer="ones", l2=l2)
              for name, l2 in [("none", 0.0), ("some", 0.25)]]  # fmt: skip
    layer = strategies.DistributedEmbedding(
        features={table.name: strategies.FeatureConfig(table) for table in tables}
    )
    layer({"none": tf.constant([1, 2]), "some": tf.constant([[1, 1], [3, 1]])}, training=True)
    assert float(tf.add_n(layer.losses)) == 2 * 2 * 0.25


def test_ids_that_share_a_row_are_one_row_and_refused_ones_none():
    shared = strategies.DistributedEmbedding(2, 1, overflow="share", l2=1.0)
    shared(tf.constant([1, 2, 3]), training=True)
    penalty = tf.add_n(shared.losses)
    rows = shared(tf.constant([1, 2]), training=False).numpy()
    np.testing.assert_allclose(penalty, np.square(rows).sum(), rtol=1e-6)
    refusing = strategies.DistributedEmbedding(2, admission=strategies.Admission(2), l2=1.0)
    refusing(tf.constant([1, 2]), training=True)
    assert float(tf.add_n(refusing.losses)) == 0.0


def test_only_training_is_penalized():
    layer = strategies.DistributedEmbedding(2, l2=1.0)
    layer(tf.constant([1, 2]), training=True)
    assert layer.losses
    layer(tf.constant([1, 2]), training=False)
    assert not layer.losses


@pytest.mark.parametrize("value", [-1e-5, "l2", True, float("nan"), float("inf")])
def test_a_coefficient_must_be_a_number_from_0(value):
    with pytest.raises(ValueError, match="l2 must be a finite number >= 0. Received: "):
        strategies.DistributedEmbedding(2, l2=value)


def test_a_layer_keeps_it_in_its_configuration():
    layer = strategies.DistributedEmbedding(2, l2=1e-5)
    again = strategies.DistributedEmbedding.from_config(layer.get_config())
    assert again.specs.features[""].table.l2 == 1e-5
