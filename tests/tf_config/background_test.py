"""Background threads end when their owner says so."""

import threading

from tf_config.background import call_regularly


def test_a_function_is_called_regularly_until_the_event():
    calls, ended, called = [], threading.Event(), threading.Event()

    def call():
        calls.append(threading.current_thread())
        if len(calls) == 2:
            ended.set()
            called.set()

    call_regularly(call, 0.01, ended, "regular")
    assert called.wait(20)
    calls[0].join(20)
    assert not calls[0].is_alive()
    assert [thread.name for thread in calls] == ["regular"] * 2
