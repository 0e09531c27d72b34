"""The update modes, by their names in `ParameterServerOptions.mode`.

A new mode is a subclass of `Mode` in a file here, an entry of `MODES`, and a field of
`ParameterServerOptions` for each of its `settings`.
"""

from strategies.ps.modes.async_ import Async
from strategies.ps.modes.base import Mode
from strategies.ps.modes.geo import Geo
from strategies.ps.modes.half_async import HalfAsync
from strategies.ps.modes.sync import Sync

__all__ = ["MODES", "Mode"]

MODES: dict[str, type[Mode]] = {
    "sync": Sync,
    "async": Async,
    "half_async": HalfAsync,
    "geo": Geo,
}
