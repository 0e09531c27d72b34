import os

import pytest

from tf_config.launcher.process_memory import peak_of, was_killed_by_kernel

LOGS = {
    "6,1,5000000,-;Out of memory: Killed process 4711 (python3) total-vm:1kB": 4711,
    "6,1,5000000,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=4712,uid=0": 4712,
}


@pytest.mark.parametrize("text", LOGS)
def test_the_kernels_word_is_found(tmp_path, text):
    log = tmp_path / "kmsg"
    log.write_text(f"6,0,1,-;else\n{text}\n")
    assert was_killed_by_kernel(LOGS[text], 4.0, log)
    assert not was_killed_by_kernel(LOGS[text], 9.0, log)  # another one of that number
    assert not was_killed_by_kernel(471, 4.0, log)


def test_no_log_says_nothing(tmp_path):
    assert not was_killed_by_kernel(1, 0.0, tmp_path / "none")
    assert was_killed_by_kernel(os.getpid(), 0.0) is False


def test_memory_is_seen():
    before = peak_of(os.getpid())
    held = bytearray(before + (64 << 20))
    assert peak_of(os.getpid()) >= len(held)
