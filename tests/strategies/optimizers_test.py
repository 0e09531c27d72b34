"""Every optimizer of Keras's on real workers; the checks stand in tests/distributed."""

import pytest

from tests.support.check_jobs import checks_of

SLOW = pytest.mark.slow
REDUCE = '{"mode": "reduce", "split_above": 4}'
# One for each way in which an optimizer changes variables: by elements, by a norm, by no gradient.
SOME = ["adam", "lion", "ftrl", "averages_that_overwrite", "clipnorm"]


@SLOW
@pytest.mark.parametrize(
    ("api", "workers", "replicas", "options"), [("keras", 3, 1, REDUCE), ("tf_keras", 2, 2, "{}")]
)
@pytest.mark.parametrize("check", checks_of("optimizers.py"))
def test_every_optimizer_does_what_it_does_in_one_process(
    run_check, check, api, workers, replicas, options
):
    run_check(check, api, replicas, options, workers=workers)


@SLOW
@pytest.mark.parametrize("check", checks_of("optimizers.py", only=["adam", "lion", "clipnorm"]))
def test_every_optimizer_does_so_on_tensorflows_collectives(job, run_check, check):
    job.hide_horovod()
    run_check(check, "tf_keras", 1, '{"bucket_bytes": 64}')


@SLOW
@pytest.mark.parametrize(
    ("api", "options"),
    [("tf_keras", REDUCE), ("keras", '{"mode": "reduce", "split_above": 10}')],
)
@pytest.mark.parametrize("check", checks_of("optimizers.py", only=SOME))
def test_optimizers_whose_state_is_in_parts_do_what_they_do_in_one_process(
    run_check, check, api, options
):
    run_check(check, api, 1, options)
