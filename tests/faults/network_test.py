"""Hosts that are cut off, that are slow and that come back, while two workers train; needs root."""

import pytest

from tests.support import network_faults
from tests.support.network_faults import names_the_other, train
from tests.support.two_hosts import TwoHosts, missing

pytestmark = [pytest.mark.slow, pytest.mark.processes]
KINDS = ["horovod", "tensorflow", "sync"]
NOTICED_SECONDS = 180.0
WITHIN = 200.0
_whole = {}


@pytest.fixture(scope="module")
def hosts():
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with TwoHosts.made() as hosts:
        yield hosts


@pytest.mark.parametrize("kind", [*KINDS, "async"])
def test_a_host_that_is_cut_off_ends_who_needs_it_and_is_named(hosts, kind):
    first, second = train(hosts, kind, network_faults.cut, WITHIN, 400 if kind == "async" else 60)
    print(kind, first.seconds, second.seconds, first.output[-1500:], second.output[-1500:])
    assert second.code not in (0, None), second.output
    assert second.seconds < NOTICED_SECONDS
    assert names_the_other(hosts, second), second.output
    if kind == "async":  # the server is beside the first worker, which misses nobody
        assert first.code == 0 and first.weights, first.output
        return
    assert first.code not in (0, None), first.output
    assert first.seconds < NOTICED_SECONDS
    assert names_the_other(hosts, first), first.output


@pytest.mark.parametrize("fault", [network_faults.back, network_faults.slow])
@pytest.mark.parametrize("kind", [*KINDS, "async"])
def test_training_goes_on_where_the_network_does(hosts, kind, fault):
    ended = train(hosts, kind, fault, 2 * WITHIN, 15)
    print(kind, fault.__name__, [each.seconds for each in ended])
    if kind == "tensorflow" and fault is network_faults.back and ended[0].code != 0:
        # Its RPCs may have been given up meanwhile; all end then, and say with which task.
        for each in ended:
            assert each.code not in (0, None) and each.seconds < NOTICED_SECONDS, each.output
            assert names_the_other(hosts, each), each.output
        return
    assert [each.code for each in ended] == [0, 0], "\n".join(each.output for each in ended)
    assert all(each.weights for each in ended)
    if kind == "async":
        return
    if kind not in _whole:
        whole = train(hosts, kind, network_faults.none, WITHIN, 15)
        assert all(each.weights for each in whole), [(each.code, each.output) for each in whole]
        _whole[kind] = {each.weights for each in whole}
    assert {each.weights for each in ended} == _whole[kind]
    assert len(_whole[kind]) == 1
