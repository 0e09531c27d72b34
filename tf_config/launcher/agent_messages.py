"""Messages of an agent to the launcher, among the output of its program.

A message is an escape sequence of a kind that terminals do not show.
"""

from __future__ import annotations

_BEGIN, _END = b"\x1b]tf-config;", b"\x07"
# A longer one would be output that only begins like a message.
_LONGEST = 1 << 22


def message(content: bytes) -> bytes:
    """Returns a message for the output.

    Args:
      content: the content, without control characters.
    """
    return _BEGIN + content + _END


class MessageReader:
    """Separates the messages from the output, which arrive in parts.

    >>> reader = MessageReader()
    >>> reader.feed(b"1/2" + message(b"a")[:-2]), reader.feed(message(b"a")[-2:] + b" 2/2")
    ((b'1/2', []), (b' 2/2', [b'a']))
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """Takes the next output; returns it without messages, and the contents of the messages.

        The beginning of a message is held back until the rest arrives.
        """
        messages: list[bytes] = []
        data, output = self._held + data, b""
        while True:
            before, begin, rest = data.partition(_BEGIN)
            output += before
            if not begin:
                break
            content, end, data = rest.partition(_END)
            if not end:
                self._held = begin + content
                if len(content) > _LONGEST:
                    output, self._held = output + self._held, b""
                return output, messages
            messages.append(content)
        held = next(n for n in range(len(_BEGIN) - 1, -1, -1) if output.endswith(_BEGIN[:n]))
        self._held = output[len(output) - held :]
        return output[: len(output) - held], messages

    def close(self) -> bytes:
        """Returns the output that is still held back, once no more arrives."""
        held, self._held = self._held, b""
        return held
