"""Every optimizer of Keras's on real workers; the checks stand in tests/distributed."""

import pytest

from tests.support.check_jobs import checks_of

SLOW = pytest.mark.slow
REDUCE = '{"mode": "reduce", "split_above": 4}'
CASES = [
    *(
        pytest.param(*case, marks=SLOW)
        for case in [
            ("keras", 4, 1, REDUCE),
            ("keras", 2, 1, '{"bucket_bytes": 64}'),
            ("tf_keras", 2, 2, "{}"),
        ]
    ),
]


@pytest.mark.parametrize(("api", "workers", "replicas", "options"), CASES)
@pytest.mark.parametrize("check", checks_of("optimizers.py"))
def test_every_optimizer_does_what_it_does_in_one_process(
    run_check, check, api, workers, replicas, options
):
    run_check(check, api, replicas, options, workers=workers, timeout=300)


@SLOW
@pytest.mark.parametrize("check", checks_of("optimizers.py", only=["adam", "lion", "clipnorm"]))
def test_every_optimizer_does_so_on_tensorflows_collectives(job, run_check, check):
    job.hide_horovod()
    run_check(check, "tf_keras", 1, '{"bucket_bytes": 64}', timeout=300)


@SLOW
@pytest.mark.parametrize(
    ("api", "workers", "replicas", "options"),
    [
        ("keras", 2, 2, '{"bucket_bytes": 0}'),
        ("tf_keras", 2, 1, REDUCE),
    ],
)
@pytest.mark.parametrize("check", checks_of("optimizers.py"))
def test_every_optimizer_does_so_in_each_strategy(
    job, run_check, check, api, workers, replicas, options
):
    job.hide_horovod()
    run_check(check, api, replicas, options, workers=workers, timeout=300)


@SLOW
@pytest.mark.parametrize(
    "check",
    checks_of(
        "optimizers.py", only=["adam", "lion", "ftrl", "averages_that_overwrite", "clipnorm"]
    ),
)
def test_every_optimizer_does_so_with_its_state_in_parts(run_check, check):
    run_check(check, "keras", 1, '{"mode": "reduce", "split_above": 10}', timeout=300)
