"""What trains is created in the scope; the checks on workers stand in tests/distributed."""

import sys

import pytest
import tensorflow as tf

import strategies
from tests.support.check_jobs import checks_of


@pytest.mark.parametrize(
    "make", [lambda: strategies.MirroredStrategy(["CPU:0"]), strategies.CentralStorageStrategy]
)
def test_a_model_from_outside_the_scope_is_not_trained(make):
    import keras

    strategy = make()
    model = keras.Sequential([keras.layers.InputLayer([3]), keras.layers.Dense(1, name="outer")])
    with strategy.scope():
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"inside strategy.*'.*outer/kernel:0'.* created outside"):
        model.fit(tf.ones([4, 3]), tf.ones([4, 1]), verbose=0)
    variable = tf.Variable(1.0)
    with pytest.raises(ValueError, match="created outside of the scope of"), strategy.scope():
        strategy.extended.colocate_vars_with(variable)


def test_keras_computes_with_tensorflow(monkeypatch):
    import keras

    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    strategy = strategies.MirroredStrategy(["CPU:0"])
    with pytest.raises(RuntimeError, match="backend 'jax'. Set KERAS"), strategy.scope():
        pass
    # A script for tf_keras may run where Keras 3 is set up for something else.
    monkeypatch.setitem(sys.modules, "tf_keras", object())
    with strategy.scope():
        pass


@pytest.mark.parametrize(
    ("api", "workers", "ps", "options"),
    [
        ("keras", 2, 0, []),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("keras", 2, 1, ["sync"]),
                ("tf_keras", 1, 1, ["async"]),
            ]
        ),
    ],
)
@pytest.mark.parametrize(
    "check",
    checks_of(
        "scope.py",
        slow=[
            "a_loop_with_a_model_from_outside_is_refused",
            "an_optimizer_from_outside_is_refused",
            "a_metric_from_outside_is_refused",
            "a_model_that_only_predicts_may_come_from_outside",
        ],
    ),
)
def test_workers_refuse_to_fit_a_model_from_outside_the_scope(
    run_check, check, api, workers, ps, options
):
    run_check(check, api, *options, workers=workers, ps=ps)
