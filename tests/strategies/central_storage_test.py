"""CentralStorageStrategy; the checks stand in tests/distributed."""

import pytest

from tests.support.check_jobs import checks_of


@pytest.mark.parametrize("api", ["keras", pytest.param("tf_keras", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "check", checks_of("central.py", slow=["uneven_rows_in_float16", "uneven_rows_in_bfloat16"])
)
def test_replicas_do_what_one_process_does(run_check, check, api):
    run_check(check, api, workers=1)
