"""Creation of the strategy that TF_CONFIG asks for."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from strategies.collectives.selection import (
    resolve_communication,
    validate_options,
    with_implementation,
)
from strategies.core.resolver import config_of
from strategies.multi_worker import MultiWorkerMirroredStrategy
from strategies.parameter_server import ParameterServerStrategy, options_of
from strategies.ps.options import ParameterServerOptions
from strategies.reduction import ReductionOptions
from tf_config import TFConfig

_OF_BOTH = ("cluster_resolver", "num_replicas", "start_timeout")
_OF_WORKERS = ("communication", "communication_options")
_OF_SERVERS = tuple(field.name for field in dataclasses.fields(ParameterServerOptions))
_Options = ReductionOptions | ParameterServerOptions


def from_tf_config(
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
    *,
    options: _Options | Sequence[_Options] | None = None,
    num_replicas: int | None = None,
    start_timeout: float | None = None,
    **settings: Any,
) -> tf.distribute.Strategy:
    """Creates the strategy that TF_CONFIG asks for: with parameter servers, or mirrored.

    Without TF_CONFIG the strategy has one worker, so one script runs on a laptop and on a cluster.

    >>> from_tf_config().num_replicas_in_sync
    1

    A script can give the options of both strategies. `ParameterServerStrategy` is used if there is
    a ps task, `MultiWorkerMirroredStrategy` if there is none:

        strategy = strategies.from_tf_config(
            options=[
                strategies.ReductionOptions(compression="fp16"),
                strategies.ParameterServerOptions("half_async"),
            ]
        )

    The options of both strategies are validated in any case; a warning names those that the cluster
    does not use.

    Args:
      cluster_resolver: the cluster and the task of this process, instead of TF_CONFIG.
      options: `ReductionOptions` for workers without servers, `ParameterServerOptions` for
        workers with servers, or both in a list.
      num_replicas: the number of replicas of each worker.
      start_timeout: the number of seconds to wait for other tasks at the start.
      **settings: further arguments of either strategy: `communication` and
        `communication_options`; `mode` and the other attributes of `ParameterServerOptions`,
        instead of such an object in `options`.

    Raises:
      ClusterConfigError: if TF_CONFIG is wrong.
      TypeError: if neither strategy has an argument of this name.
      ValueError: if a value is not valid.
    """
    _check_known(settings)
    cluster_resolver, communication_options, communication = with_implementation(
        cluster_resolver, settings.pop("communication_options", None),
        settings.pop("communication", None),
    )  # fmt: skip
    for name, value in zip(_OF_WORKERS, (communication, communication_options), strict=True):
        settings |= {} if value is None else {name: value}
    reduction, servers = _split_options(options)
    of_servers = {name: settings[name] for name in settings if name in _OF_SERVERS}
    of_workers = {name: settings[name] for name in settings if name in _OF_WORKERS}
    for_servers = {**({} if servers is None else {"options": servers}), **of_servers}
    for_workers = {**({} if reduction is None else {"options": reduction}), **of_workers}
    # Validated even if this cluster does not use them, because another cluster will.
    options_of(servers, of_servers)
    resolve_communication(of_workers.get("communication"))
    validate_options(of_workers.get("communication_options"))
    config = TFConfig.from_env() if cluster_resolver is None else config_of(cluster_resolver)
    strategy: Any = MultiWorkerMirroredStrategy
    used, unused = for_workers, for_servers
    if config is not None and config.cluster.tasks("ps"):
        strategy, used, unused = ParameterServerStrategy, for_servers, for_workers
    if unused and (config is None or config.task in config.cluster.training_tasks[:1]):
        tasks = "a ps task" if strategy is ParameterServerStrategy else "no ps task"
        logging.warning(
            "%s ignores %s, because the cluster has %s.",
            strategy.__name__,
            ", ".join(f"{name}={value!r}" for name, value in unused.items()),
            tasks,
        )
    return strategy(
        cluster_resolver, num_replicas=num_replicas, start_timeout=start_timeout, **used
    )


def _split_options(
    options: Any,
) -> tuple[ReductionOptions | None, ParameterServerOptions | None]:
    """Splits options into those for workers without servers and those for workers with servers."""
    if options is None:
        return None, None
    objects = list(options) if isinstance(options, Sequence) else [options]
    by_kind: list[Any] = []
    for kind in (ReductionOptions, ParameterServerOptions):
        of_kind = [one for one in objects if isinstance(one, kind)]
        by_kind.append(of_kind[0] if len(of_kind) == 1 else None)
    if len(objects) != sum(one is not None for one in by_kind):
        raise ValueError(
            "options must be a strategies.ReductionOptions, a strategies.ParameterServerOptions, "
            f"or a list of one of each. Received: {options!r}."
        )
    return by_kind[0], by_kind[1]


def _check_known(settings: Mapping[str, Any]) -> None:
    for name in settings:
        if name in (*_OF_WORKERS, *_OF_SERVERS):
            continue
        close = difflib.get_close_matches(
            name, (*_OF_BOTH, *_OF_WORKERS, *_OF_SERVERS, "options"), 1
        )
        raise TypeError(
            "The arguments must be those of MultiWorkerMirroredStrategy, "
            f"{', '.join((*_OF_BOTH, *_OF_WORKERS))} and options=ReductionOptions(...), or those "
            f"of ParameterServerStrategy, {', '.join((*_OF_BOTH, *_OF_SERVERS))} or "
            f"options=ParameterServerOptions(...). Received: {name!r}."
            + (f" Did you mean {close[0]!r}?" if close else " Omit it.")
        )
