"""Waiting for file descriptors."""

import fcntl
import os
import resource

import pytest

from tf_config.launcher.descriptors import wait_for_descriptors


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_what_can_be_read_or_written_is_returned(pipe):
    reads, writes = pipe
    assert wait_for_descriptors([reads], 0) == set()
    assert wait_for_descriptors([reads], None, [writes]) == {writes}
    os.write(writes, b"data")
    assert wait_for_descriptors([reads], None) == {reads}
    assert wait_for_descriptors([reads], 0, [writes]) == {reads, writes}


def test_a_descriptor_whose_other_end_is_closed_is_ready():
    reads, writes = os.pipe()
    os.close(writes)
    assert wait_for_descriptors([reads], None) == {reads}
    os.close(reads)


def test_a_regular_file_is_ready(tmp_path):
    path = tmp_path / "input"
    path.touch()
    with path.open() as file:
        assert wait_for_descriptors([file.fileno()], None) == {file.fileno()}


def test_a_process_may_have_more_than_1024_open_files(pipe):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1200:
        pytest.skip("this shell limits open files to fewer than 1,200 (ulimit -n)")
    reads, writes = pipe
    high = fcntl.fcntl(reads, fcntl.F_DUPFD_CLOEXEC, 1100)  # the first free one from there on
    try:
        assert wait_for_descriptors([high], 0) == set()
        os.write(writes, b"data")
        assert wait_for_descriptors([high], None) == {high}
    finally:
        os.close(high)
