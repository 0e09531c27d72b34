"""Progress bars of workers whose common output is a log and no terminal."""

from __future__ import annotations

import atexit
import os
import sys

from tf_config.launcher.console import WholeBars
from tf_config.launcher.settings import BARS_VARIABLE, WHOLE_BARS


def print_whole_bars(is_first: bool) -> None:
    """Lets the first worker print each progress bar once, and the others none.

    Does nothing unless `tf-config exec` has found that the output is no terminal. Keras draws bars
    wherever it prints to: each worker would write each of its bars some hundred times into the log.

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
