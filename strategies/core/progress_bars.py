"""Progress bars of workers whose combined output is a log, not a terminal."""

from __future__ import annotations

import atexit
import os
import sys

from tf_config.launcher.console import WholeBars
from tf_config.launcher.settings import BARS_VARIABLE, WHOLE_BARS


def print_whole_bars(is_first: bool) -> None:
    """Makes the first worker print each progress bar only once, and the others none.

    Does nothing unless `tf-config exec` has found that the output is not a terminal. Keras redraws
    a progress bar wherever it prints, so each worker would write it to the log hundreds of times.

    Args:
      is_first: whether this is the first worker.
    """
    if os.environ.get(BARS_VARIABLE) != WHOLE_BARS:
        return
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, WholeBars):
            whole = WholeBars(stream, is_first)
            setattr(sys, name, whole)
            atexit.register(whole.finish)
