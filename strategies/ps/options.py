"""Options of parameter-server training."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.ps.modes import MODES
from strategies.ps.placement import MIN_SLICE_SIZE, Chooser, Placement
from strategies.utils.argument_checks import check_whole_number

_COMPRESSIONS = (None, "fp16")
_GEO_ROWS = ("local", "servers")


@dataclass(frozen=True)
class ParameterServerOptions:
    """Options of parameter-server training, validated on construction.

    >>> ParameterServerOptions("geo", geo_steps=20).geo_steps
    20

    Attributes:
      mode: "sync", "async", "half_async" or "geo"; see `ParameterServerStrategy`.
      placement: how variables are assigned to servers: "size", each slice to the server that
        holds the fewest bytes; "round_robin"; "hash" of a variable's path, such as
        "sequential/dense_1/kernel"; or a function that takes a variable's path, its shape and the
        number of servers and returns a server's number. Except with "size", the other slices of the
        variable go to the servers after that one.
      min_slice_size: a variable of n elements has up to n // min_slice_size slices, at most one
        per server. None keeps variables whole, for optimizers that need a whole variable at once.
      max_merge: in "async", the maximum number of steps that are summed into one update; 1 by
        default. Steps that cannot be summed, such as those that assign values, are sent one by one.
      send_queue_size: in "async", the maximum number of steps that are queued or being sent; by
        default 1, or twice `max_merge`. 1 is enough to send while the next step is computed.
      pull_every: in "async", the number of steps sent between two pulls of the servers' values; 1
        by default.
      geo_steps: in "geo", the number of steps between two exchanges of the variables that these
        steps train; 100 by default.
      geo_rows: in "geo", who trains the rows of a `DistributedEmbedding`: "local", each worker
        those that it has used since its last exchange, with its own optimizer; or "servers", the
        servers in every step, so that workers hold no copies of rows. "local" by default.
      geo_row_cache: in "geo" with `geo_rows="local"`, the number of rows of each table width that a
        worker keeps after an exchange: those first that it has used most since the exchange before,
        and others as long as there is room. By default, those that it has used since then. 0 keeps
        none, for the least memory.
      compression: "fp16" sends gradients to the servers as float16; None sends them unchanged.

    Raises:
      ValueError: if a value is invalid, or does not apply to this mode.
    """

    mode: str = "async"
    placement: str | Chooser = "size"
    min_slice_size: int | None = MIN_SLICE_SIZE
    max_merge: int | None = None
    send_queue_size: int | None = None
    pull_every: int | None = None
    geo_steps: int | None = None
    geo_rows: str | None = None
    geo_row_cache: int | None = None
    compression: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in tuple(MODES):
            raise ValueError(
                f"mode must be one of {', '.join(map(repr, MODES))}. Received: {self.mode!r}."
            )
        if self.compression not in _COMPRESSIONS:
            raise ValueError(f"compression must be None or 'fp16'. Received: {self.compression!r}.")
        Placement(1, self.placement, self.min_slice_size)
        of_mode = {name: mode for mode, cls in MODES.items() for name in cls.settings}
        for name, mode in of_mode.items():
            value = getattr(self, name)
            if value is None:
                continue
            if name == "geo_rows":
                _check_geo_rows(value)
            else:
                check_whole_number(name, value, least=0 if name == "geo_row_cache" else 1)
            if self.mode != mode:
                raise ValueError(
                    f"{name} can only be used with mode={mode!r}. Received: {name}={value} with "
                    f"mode={self.mode!r}. Omit it."
                )
        if self.geo_rows == "servers" and self.geo_row_cache is not None:
            raise ValueError(
                "geo_row_cache can only be used with geo_rows='local'. Received: "
                f"geo_row_cache={self.geo_row_cache} with geo_rows='servers'. Omit one of them."
            )


def _check_geo_rows(value: object) -> None:
    if value not in _GEO_ROWS:
        raise ValueError(f"geo_rows must be 'local' or 'servers'. Received: {value!r}.")
