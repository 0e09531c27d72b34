"""Messages among output, however it is cut into parts."""

from tf_config.launcher.agent_messages import MessageReader, message

CONTENTS = [b'[1, "\\u001b"]', b""]
STREAM = b"one\x1b[0m\r\n" + b"two".join(map(message, CONTENTS)) + b"\x1b]0;t\x07\x1b"


def test_output_and_messages_are_separated_however_they_arrive():
    for size in range(1, len(STREAM) + 1):
        reader, output, messages = MessageReader(), b"", []
        for begin in range(0, len(STREAM), size):
            part, contents = reader.feed(STREAM[begin : begin + size])
            output += part
            messages += contents
        assert output + reader.close() == b"one\x1b[0m\r\ntwo\x1b]0;t\x07\x1b"
        assert messages == CONTENTS


def test_output_without_messages_is_not_held_back():
    assert MessageReader().feed(b"1/2\r\x1b[31m") == (b"1/2\r\x1b[31m", [])


def test_a_message_that_never_ends_is_output(monkeypatch):
    monkeypatch.setattr("tf_config.launcher.agent_messages._LONGEST", 10)
    begin = message(b"")[:-1]
    assert MessageReader().feed(begin + b"x" * 11) == (begin + b"x" * 11, [])
