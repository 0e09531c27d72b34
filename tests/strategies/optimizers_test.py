"""Every optimizer of Keras's on real workers; what is checked stands in tests/scripts."""

import pytest

SLOW = pytest.mark.slow
REDUCE = '{"mode": "reduce", "split_above": 4}'
CASES = [
    *(
        pytest.param(*case, marks=SLOW)
        for case in [
            ("keras", 2, 1, "{}"),
            ("keras", 1, 1, "{}"),
            ("keras", 1, 2, "{}"),
            ("keras", 2, 1, '{"bucket_bytes": 64}'),
            ("keras", 2, 2, '{"bucket_bytes": 0}'),
            ("keras", 4, 1, "{}"),
            ("keras", 2, 1, REDUCE),
            ("keras", 1, 2, REDUCE),
            ("keras", 2, 2, REDUCE),
            ("keras", 4, 1, REDUCE),
            ("tf_keras", 1, 2, REDUCE),
            ("tf_keras", 2, 1, REDUCE),
            ("tf_keras", 4, 1, REDUCE),
            ("tf_keras", 1, 2, "{}"),
            ("tf_keras", 2, 1, '{"bucket_bytes": 64}'),
            ("tf_keras", 2, 2, "{}"),
            ("tf_keras", 4, 1, '{"bucket_bytes": 0}'),
        ]
    ),
]


@pytest.mark.parametrize(("api", "workers", "replicas", "options"), CASES)
def test_every_optimizer_does_what_it_does_in_one_process(train, api, workers, replicas, options):
    train("optimizers.py", api, replicas, options, workers=workers, timeout=300)


@pytest.mark.parametrize(
    ("api", "workers", "replicas", "options", "names"),
    [
        ("tf_keras", 2, 1, '{"bucket_bytes": 64}', ["Adam", "Lion", "clipnorm"]),
        *(
            pytest.param(*case, [], marks=SLOW)
            for case in [
                ("keras", 2, 1, "{}"),
                ("keras", 2, 2, '{"bucket_bytes": 64}'),
                ("keras", 4, 1, '{"bucket_bytes": 0}'),
                ("tf_keras", 2, 1, "{}"),
                ("tf_keras", 2, 2, "{}"),
                ("keras", 2, 1, REDUCE),
                ("tf_keras", 2, 2, REDUCE),
            ]
        ),
    ],
)
def test_so_it_does_on_tensorflows_collectives(job, train, api, workers, replicas, options, names):
    job.hide_horovod()
    train("optimizers.py", api, replicas, options, *names, workers=workers, timeout=300)


@pytest.mark.slow
def test_so_it_does_where_its_state_is_in_parts(train):
    names = ["Adam", "Lion", "Ftrl", "averages, overwritten", "clipnorm"]
    options = '{"mode": "reduce", "split_above": 10}'
    train("optimizers.py", "keras", 1, options, *names, timeout=300)
