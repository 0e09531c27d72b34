"""What a parameter server saves of its state, and restores after a restart."""

import pytest

from tests.support.check_jobs import checks_of


@pytest.mark.parametrize("check", checks_of("server_saves.py"))
def test_saves_of_a_server(run_check, check):
    run_check(check, workers=0)
