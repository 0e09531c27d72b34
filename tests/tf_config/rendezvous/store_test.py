"""Stores of entries: each kind keeps the same contract."""

import pytest

from tf_config import Task
from tf_config.address import Address
from tf_config.rendezvous.http_store import HttpStore, StoreServer
from tf_config.rendezvous.store import FileStore

SECRET = "0123456789abcdef"


@pytest.fixture
def server():
    server = StoreServer(("127.0.0.1", 0), SECRET)
    server.start()
    yield Address("127.0.0.1", server.server_address[1])
    server.close()


@pytest.fixture(params=["file", "http"])
def store(request, tmp_path):
    if request.param == "file":
        return FileStore(tmp_path)
    return HttpStore(request.getfixturevalue("server"), "scope", SECRET)


def test_an_entry_is_what_was_written_last(store):
    assert store.get("key") is None
    for value in (b"first", b"", b"\x00\xff last"):
        assert store.put("key", value)
        assert store.get("key") == value


def test_a_task_and_its_label_are_one_key(store):
    store.put(Task("worker", 1), b"value")
    assert store.get("worker-1") == b"value"
    assert store.get(Task("worker", 0)) is None


def test_a_file_store_leaves_only_its_entries(tmp_path):
    store = FileStore(tmp_path)
    for value in (b"a", b"b"):
        store.put("key", value)
    assert [file.name for file in tmp_path.iterdir()] == ["key.json"]
    store.delete("key")
    store.delete("key")
    assert list(tmp_path.iterdir()) == []


def test_scopes_of_a_server_are_apart(server):
    HttpStore(server, "one", SECRET).put("key", b"value")
    assert HttpStore(server, "other", SECRET).get("key") is None


def test_a_server_with_another_secret_refuses(server):
    stranger = HttpStore(server, "scope", SECRET[::-1])
    assert not stranger.put("key", b"value")
    assert stranger.is_refused
    assert stranger.get("key") is None


def test_a_server_that_is_gone_has_no_entries(server):
    gone = HttpStore(Address("127.0.0.1", 1), "scope", SECRET)
    assert (gone.put("key", b""), gone.get("key"), gone.is_refused) == (False, None, False)


def test_a_server_that_never_started_can_be_closed():
    StoreServer(("127.0.0.1", 0)).close()
