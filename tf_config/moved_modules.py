"""Keeps the old names of modules that moved since version 0.1.0 importable for one release.

The names inside the modules are the current ones. After that release, delete this module and the
calls of `keep_old_names`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "tf_config.agent": "tf_config.launcher.agent",
    "tf_config.cli.completing": "tf_config.cli.arguments",
    "tf_config.commands": "tf_config.launcher.commands",
    "tf_config.connect": "tf_config.reachability",
    "tf_config.environments.tf_config": "tf_config.environments.detect",
    "tf_config.guardian": "tf_config.launcher.orphan_reaper",
    "tf_config.horovod_wheel": "tf_config.horovod.wheel",
    "tf_config.interface": "tf_config.network_interface",
    "tf_config.interruption": "tf_config.launcher.signals",
    "tf_config.join": "tf_config.launcher.task_resolution",
    "tf_config.launch": "tf_config.launcher.runner",
    "tf_config.listening": "tf_config.bind_address",
    "tf_config.machine": "tf_config.doctor.machine",
    "tf_config.memory": "tf_config.launcher.process_memory",
    "tf_config.node_list": "tf_config.environments.node_list",
    "tf_config.output": "tf_config.launcher.console",
    "tf_config.plan": "tf_config.launcher.job",
    "tf_config.process": "tf_config.launcher.task_process",
    "tf_config.remote": "tf_config.launcher.ssh",
    "tf_config.rendezvous.clock": "tf_config.rendezvous.waiting",
    "tf_config.rendezvous.directory": "tf_config.rendezvous.shared_directory",
    "tf_config.rendezvous.meet": "tf_config.rendezvous.rendezvous",
    "tf_config.rendezvous.seat": "tf_config.rendezvous.participant",
    "tf_config.restarts": "tf_config.launcher.restarts",
    "tf_config.session": "tf_config.launcher.pty_process",
    "tf_config.settings": "tf_config.launcher.settings",
    "tf_config.sidecar": "tf_config.launcher.sidecar",
    "tf_config.sidecar_process": "tf_config.launcher.sidecar_process",
    "tf_config.store": "tf_config.rendezvous.http_store",
    "tf_config.vitals": "tf_config.launcher.exit_diagnosis",
    "tf_config.witness": "tf_config.launcher.process_probe",
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import hook that imports a moved module under its old name."""

    def __init__(self, moved: Mapping[str, str]):
        self._moved = moved

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._moved:
            return None
        return ModuleSpec(fullname, self, is_package=not self._moved[fullname])

    def exec_module(self, module: ModuleType) -> None:
        # The import statement returns the entry of `sys.modules`. Executing the file a second time
        # would create a second module with separate globals and classes.
        if self._moved[module.__name__]:
            sys.modules[module.__name__] = importlib.import_module(self._moved[module.__name__])


def keep_old_names(moved: Mapping[str, str] = MOVED) -> None:
    """Makes moved modules importable under their old names, too.

    Args:
      moved: a dictionary from old to current names; "" for a package that no longer exists.
    """
    sys.meta_path.append(_Finder(moved))
