"""`tf-config split`: cutting text and TFRecords into shards."""

import gzip
import itertools
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tf_config import ClusterConfigError
from tf_config.cli import main
from tf_config.sharding import Source, split
from tf_config.sharding.crc32c import masked_crc32c

COMMAND = [sys.executable, "-m", "tf_config", "split"]


def tfrecord(data):
    length = len(data).to_bytes(8, "little")
    # Nobody checks the data's checksum on the way, and so this one may be wrong.
    return length + masked_crc32c(length).to_bytes(4, "little") + data + b"\xff\x00\n\xff"


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def cut(path, count, directory, format=None, watch=lambda count: None):
    """Splits, and returns the shards' contents; nothing else may be in the directory."""
    written = split(Source.find(path, format), count, directory, watch)
    assert names(directory) == [path.name for path in written.paths]
    return [path.read_bytes() for path in written.paths]


def refused(capsys, *arguments):
    """Runs a command that has to fail, and returns its one line."""
    assert main(["split", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tf-config: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture
def lines(tmp_path):
    """A file of ten lines."""
    path = tmp_path / "train.txt"
    path.write_text("".join(f"line {index}\n" for index in range(10)))
    return path


def test_record_i_is_in_shard_i_mod_n(lines, tmp_path, capsys):
    out = tmp_path / "made" / "out"
    assert main(["split", str(lines), "--shards", "3", "--output-dir", str(out)]) == 0
    assert names(out) == ["train.txt-00000", "train.txt-00001", "train.txt-00002"]
    assert (out / "train.txt-00000").read_text() == "line 0\nline 3\nline 6\nline 9\n"
    assert (out / "train.txt-00001").read_text() == "line 1\nline 4\nline 7\n"
    assert (out / "train.txt-00002").read_text() == "line 2\nline 5\nline 8\n"
    captured = capsys.readouterr()
    assert captured.out == (
        "records: 10; shards: 3; records per shard: 3 to 4; bytes per shard: 21 to 28\n"
    )
    assert captured.err == ""


def dealt_back(shards):
    """Returns the records of all shards, one from each in turn."""
    turns = itertools.zip_longest(*shards)
    return [record for turn in turns for record in turn if record is not None]


@given(
    records=st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")), min_size=1),
    ends=st.booleans(),
    data=st.data(),
)
@example(records=[b"\xff\xfe\r", b"", b"\0\r"], ends=False, data=None)
@example(records=[b"\x1f\x8b", b"x"], ends=True, data=None)
def test_lines_of_all_shards_in_turn_are_the_input(records, ends, data):
    ends = ends or not records[-1]  # without its break, an empty last line is none
    assume(not records[0].startswith(b"\x1f\x8b\x08"))  # gzip's, whatever the file's name
    count = data.draw(st.integers(1, len(records))) if data else 2
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "x")
        path.write_bytes(b"\n".join(records) + b"\n" * ends)
        shards = cut(path, count, Path(directory, "out"), "text")
    cut_up = [shard.removesuffix(b"\n").split(b"\n") for shard in shards]
    assert all(shard.endswith(b"\n") for shard in shards)
    assert dealt_back(cut_up) == records
    assert max(map(len, cut_up)) - min(map(len, cut_up)) <= 1


def parsed(data):
    """Returns the TFRecords in `data`, by another way than the package's."""
    records = []
    while data:
        size = 16 + int.from_bytes(data[:8], "little")
        records.append(data[:size])
        data = data[size:]
    return records


@given(st.lists(st.binary(max_size=40), min_size=1), st.data())
def test_tfrecords_of_all_shards_in_turn_are_the_input(contents, data):
    records = [tfrecord(content) for content in contents]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "x")
        path.write_bytes(b"".join(records))
        shards = cut(path, data.draw(st.integers(1, len(records))), Path(directory, "out"))
    assert dealt_back(map(parsed, shards)) == records


def test_records_larger_than_what_is_read_at_once(tmp_path):
    long, short = b"x" * 3_000_000, b"y"
    text, records = tmp_path / "text", tmp_path / "records"
    text.write_bytes(b"\n".join([long, short, long]))
    assert cut(text, 2, tmp_path / "1") == [(long + b"\n") * 2, short + b"\n"]
    records.write_bytes(b"".join(map(tfrecord, [long, short, long])))
    assert cut(records, 2, tmp_path / "2") == [tfrecord(long) * 2, tfrecord(short)]


def test_the_files_of_a_directory_are_one_after_the_other(tmp_path):
    data = tmp_path / "data"
    (data / "deeper").mkdir(parents=True)
    (data / "deeper" / "c").write_text("no\n")
    (data / ".hidden").write_text("no\n")
    (data / "_SUCCESS").write_text("")
    (data / "b").write_text("3\n4\n")
    (data / "a").write_text("1\n2")
    assert cut(data, 2, tmp_path / "out") == [b"1\n3\n", b"2\n4\n"]
    assert names(tmp_path / "out") == ["data-00000", "data-00001"]


def test_a_directory_without_a_name_of_its_own(lines, tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    inside.mkdir()
    lines.rename(inside / lines.name)
    monkeypatch.chdir(inside)
    assert len(cut(Path("."), 2, Path("../out"))) == 2
    assert names(tmp_path / "out") == ["inside-00000", "inside-00001"]


def test_gzip_comes_out_as_it_went_in(tmp_path):
    for name in ("train.txt.gz", "train.txt"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(b"1\n2\n", mtime=0) + gzip.compress(b"3\n"))
        out = tmp_path / f"of {name}"
        shards = cut(path, 2, out)
        assert names(out) == ["train.txt-00000.gz", "train.txt-00001.gz"]
        assert [gzip.decompress(shard) for shard in shards] == [b"1\n3\n", b"2\n"]
        assert [shard[4:8] for shard in shards] == [b"\0" * 4] * 2  # no time: always the same
    path = tmp_path / "records.gz"
    path.write_bytes(gzip.compress(tfrecord(b"a") + tfrecord(b"b")))
    shards = cut(path, 2, tmp_path / "records")
    assert [gzip.decompress(shard) for shard in shards] == [tfrecord(b"a"), tfrecord(b"b")]


def test_what_tensorflow_writes_is_split_and_read_by_tensorflow(tmp_path):
    import tensorflow as tf

    path = tmp_path / "train.tfrecord"
    contents = [bytes([index]) * index for index in range(50)]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for content in contents:
            writer.write(content)
    written = split(Source.find(path), 3, tmp_path / "out")
    for index, shard in enumerate(written.paths):
        dataset = tf.data.TFRecordDataset(str(shard))
        assert list(dataset.as_numpy_iterator()) == contents[index::3]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x", tfrecord(b"a") + b"\2" + tfrecord(b"b")[1:], "which has neither at byte 17"),
        ("x", tfrecord(b"a") + tfrecord(b"b")[:-1], "whose record at byte 17 is truncated"),
        ("x", tfrecord(b"a") * 2 + b"\0" * 5, "whose record at byte 34 is truncated"),
        ("x", tfrecord(b"")[:12], "whose record at byte 0 is truncated"),
        ("x.tfrecord", b"some text\nin lines\n", "which has neither at byte 0"),
        ("x.tfrecords-00000-of-00002", b"\0" * 20, "which has neither at byte 0"),
        ("x", "abc\n".encode("utf-16"), "which contains zero bytes"),
        ("x.gz", b"a\nb\n", "Not a gzipped file"),
        (
            "x.gz",
            gzip.compress(b"a\nb\n" * 10_000, mtime=0)[:-20],
            "ended before the end-of-stream",
        ),
        ("x.gz", gzip.compress(b"a\nb\n", mtime=0)[:-8] + b"12345678", "CRC check failed"),
        ("x.gz", gzip.compress(b"a\nb\n", mtime=0)[:10] + b"\xff" * 20, "invalid"),
        ("x", b"", "Received: 0 records for 2 shards"),
        ("x.gz", gzip.compress(b"", mtime=0), "Received: 0 records for 2 shards"),
        ("x", b"one line", "Received: 1 records for 2 shards"),
    ],
)
def test_an_input_that_cannot_be_split_leaves_nothing(name, content, message, tmp_path, capsys):
    path = tmp_path / name
    path.write_bytes(content)
    out = tmp_path / "made" / "out"
    assert message in refused(capsys, path, "--shards", 2, "--output-dir", out)
    assert names(tmp_path) == [name]


def test_the_format_that_is_said_is_the_one_that_is_read(tmp_path, capsys):
    path, out = tmp_path / "x.tfrecord", tmp_path / "out"
    path.write_bytes(b"a\n\0\nb\n")
    refused(capsys, path, "--shards", 2, "--output-dir", out, "--format", "tfrecord")
    assert cut(path, 3, out, "text") == [b"a\n", b"\0\n", b"b\n"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            tfrecord(b"a"),
            "'a' (text, not compressed) and 'b' (tfrecord, not compressed)",
        ),
        (
            gzip.compress(b"1\n", mtime=0),
            "(text, not compressed) and 'b' (text, compressed)",
        ),
    ],
)
def test_files_of_two_kinds_are_not_mixed(other, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a").write_bytes(b"1\n2\n")
    Path("b").write_bytes(other)
    error = refused(capsys, ".", "--shards", 2, "--output-dir", "out")
    assert message in error
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_what_is_no_file_is_not_passed_over(make, tmp_path, capsys):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    (data / "a").write_text("1\n2\n")
    make(data / "b")
    for path in (data, data / "b"):
        error = refused(capsys, path, "--shards", 2, "--output-dir", out)
        assert f"{str(data / 'b')!r}" in error
    assert not out.exists()


def test_wrong_arguments_are_one_line(lines, tmp_path, capsys):
    out = tmp_path / "out"
    for arguments, message in [
        (["--shards", 2, "--output-dir", out], "required: INPUT"),
        ([lines, "--output-dir", out], "required: --shards"),
        ([lines, "--shards", 2], "required: --output-dir"),
        ([lines, "--shards", 0, "--output-dir", out], "must be from 1 to 99999. Received: 0"),
        ([lines, "--shards", -1, "--output-dir", out], "0 or more, received '-1'"),
        ([lines, "--shards", 11, "--output-dir", out], "Received: 10 records for 11 shards"),
        ([lines, "--shards", 2, "--output-dir", lines], "(Not a directory)"),
        ([lines, "--shards", 2, "--output-dir", lines / "out"], "(Not a directory)"),
        ([lines, "--shards", 2, "--output-dir", out, "--format", "csv"], "invalid choice"),
        ([tmp_path / "none", "--shards", 2, "--output-dir", out], "No such file"),
        ([tmp_path / ("n" * 300), "--shards", 2, "--output-dir", out], "File name too long"),
    ]:
        assert message in refused(capsys, *arguments)
    assert names(tmp_path) == ["train.txt"]


@pytest.mark.parametrize("present", ["train.txt-00001", "train.txt-00007", "train.txt-00000.gz"])
def test_nothing_is_overwritten_or_mixed_with_an_older_split(present, lines, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / present).write_text("mine")
    (out / "train.txt-0").write_text("no shard")
    error = refused(capsys, lines, "--shards", 2, "--output-dir", out)
    assert f"{present}', which exists" in error
    assert names(out) == sorted([present, "train.txt-0"])
    assert (out / present).read_text() == "mine"


def test_what_appears_meanwhile_is_not_overwritten(lines, tmp_path):
    out = tmp_path / "out"

    def somebody_else(count):
        (out / "train.txt-00001").write_text("theirs")

    with pytest.raises(ClusterConfigError, match="File exists"):
        split(Source.find(lines), 3, out, somebody_else)
    assert names(out) == ["train.txt-00001"]
    assert (out / "train.txt-00001").read_text() == "theirs"


def test_the_shards_are_there_at_once(lines, tmp_path):
    out, seen = tmp_path / "out", []

    def look(count):
        seen.extend(name for name in names(out) if name[0] != ".")

    assert len(cut(lines, 3, out, watch=look)) == 3
    assert seen == []


def limited(kind, value, *arguments):
    """Runs the command under a limit."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(kind, (value, value)),
    )


def test_more_shards_than_files_may_be_open(lines, tmp_path):
    arguments = [lines, "--shards", 100, "--output-dir", tmp_path / "out"]
    result = limited(resource.RLIMIT_NOFILE, 64, *arguments)
    assert result.returncode == 2
    assert "100 shards, and a limit of 64 open files" in result.stderr
    assert result.stderr.count("\n") == 1
    lines.write_text("\n" * 100)
    assert limited(resource.RLIMIT_NOFILE, 116, *arguments).stderr == ""
    assert len(names(tmp_path / "out")) == 100


@pytest.mark.parametrize("packed", [False, True])
def test_a_disk_without_room_is_one_line_and_leaves_nothing(packed, tmp_path):
    content = os.urandom(300_000).hex().encode() + b"\nlast\n"
    path = tmp_path / "train.txt"
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    result = limited(
        resource.RLIMIT_FSIZE, 100_000, path, "--shards", 2, "--output-dir", tmp_path / "out"
    )
    assert result.returncode == 2
    assert "(File too large). No files were left there." in result.stderr
    assert result.stderr.count("\n") == 1
    assert names(tmp_path) == ["train.txt"]


# Sends this process a signal at the very moment when it has opened its second shard.
INTERRUPT = """
import os, signal, sys
from tf_config.cli import main
for ignored_in_the_background in (signal.SIGINT, signal.SIGHUP):
    signal.signal(ignored_in_the_background, signal.SIG_DFL)
def hook(event, arguments):
    if event == "open" and str(arguments[0]).endswith("-00001"):
        os.kill(os.getpid(), signal.{name})
sys.addaudithook(hook)
{before}
sys.exit(main(sys.argv[1:]))
"""


def interrupted(name, *arguments, before=""):
    script = INTERRUPT.format(name=name, before=before)
    return subprocess.run(
        [sys.executable, "-c", script, "split", *map(str, arguments)],
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_interruption_leaves_nothing(name, lines, tmp_path):
    result = interrupted(name, lines, "--shards", 3, "--output-dir", tmp_path / "made" / "out")
    assert result.returncode == 128 + signal.Signals[name]
    assert result.stderr == f"tf-config: interrupted by {name}; no shard was written\n"
    assert result.stdout == ""
    assert names(tmp_path) == ["train.txt"]


def test_an_ignored_signal_stays_ignored(lines, tmp_path):
    before = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    arguments = [lines, "--shards", 3, "--output-dir", tmp_path / "out"]
    result = interrupted("SIGHUP", *arguments, before=before)
    assert result.returncode == 0, result.stderr
    assert len(names(tmp_path / "out")) == 3


def test_watching_counts_every_byte(lines, tmp_path):
    for path in (lines, tmp_path / "packed.gz"):
        path.write_bytes(gzip.compress(lines.read_bytes()) if path != lines else lines.read_bytes())
        counts = []
        source = Source.find(path)
        split(source, 2, tmp_path / f"out of {path.name}", counts.append)
        assert sum(counts) == source.size == path.stat().st_size


def test_a_terminal_gets_a_progress_bar(lines, tmp_path):
    ours, theirs = pty.openpty()
    arguments = [str(lines), "--shards", "2", "--output-dir", str(tmp_path / "out")]
    result = subprocess.run([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert result.returncode == 0, shown
    assert re.search(r"split.*\d+%", shown)
    assert result.stdout.endswith(b"; records per shard: 5; bytes per shard: 35\n")
