"""A served model that follows the training by the deltas of a directory."""

from __future__ import annotations

import shutil
from os import PathLike, fspath
from pathlib import Path

import tensorflow as tf

from strategies.files.atomic_files import flush_to_disk, remove
from strategies.live import delta_folder
from strategies.live.contents import CHAIN, CONTENTS, NUMBER
from strategies.live.delta_folder import Delta

UPDATE, VERSION = "update", "version"


class Follower:
    """SavedModel to which the deltas of a directory are applied in order.

    See [Note: live updates] in publisher.py. A serving process calls `update` from time to time,
    in any thread, and predicts with `model` meanwhile:

        follower = strategies.follow.Follower("served", "deltas")
        follower.update()
        predictions = follower.model.serve(inputs)

    Args:
      served: a SavedModel that `strategies.export` or `save` wrote.
      deltas: the directory that is passed to `strategies.export_delta`.

    Raises:
      ValueError: if the SavedModel cannot be updated.
      OSError: if there is no SavedModel.

    Attributes:
      model: the SavedModel, as `tf.saved_model.load` returns it.
    """

    def __init__(self, served: str | PathLike[str], deltas: str | PathLike[str]):
        self.model = tf.saved_model.load(fspath(served))
        if not {UPDATE, VERSION} <= set(self.model.signatures):
            raise ValueError(
                "A SavedModel must be written by strategies.export to follow the training. "
                f"Received: {fspath(served)!r} with the signatures "
                f"{', '.join(map(repr, sorted(self.model.signatures)))}. Export the model with "
                "strategies.export(model, path)."
            )
        version = self.model.signatures[VERSION]()
        self._chain = int(version[CHAIN])
        self._contents: str = version[CONTENTS].numpy().decode()
        self._directory = Path(fspath(deltas))

    @property
    def number(self) -> int:
        """The number of the last delta that was applied; 0 if none was."""
        return int(self.model.signatures[VERSION]()[NUMBER])

    def update(self) -> list[int]:
        """Applies the deltas that are new, in order.

        Returns:
          Their numbers.

        Raises:
          ValueError: if a delta is missing, damaged, or of another export. It is not applied, nor
            is any after it; those before it are.
        """
        applied = self.number
        numbers = []
        for number, folder in delta_folder.folders(self._directory):
            if number <= applied:
                continue
            if number != applied + 1:
                raise ValueError(
                    f"Deltas must be applied one after another. Received: {folder.name!r} after "
                    f"number {applied}, without {delta_folder.folder_name(applied + 1)!r}, in "
                    f"{str(self._directory)!r}. Nothing of it was applied. Restore the missing "
                    "folder, or start from a SavedModel that was written later."
                )
            self._apply(number, folder)
            applied = number
            numbers.append(number)
        return numbers

    def _apply(self, number: int, folder: Path) -> None:
        inputs = delta_folder.read(folder, Delta(self._chain, number, self._contents))
        self.model.signatures[UPDATE](**{name: tf.constant(each) for name, each in inputs.items()})

    def save(self, directory: str | PathLike[str]) -> str:
        """Writes the SavedModel as it is now to `directory/<number>`, unless that exists.

        It can be updated by the deltas that follow. TensorFlow Serving serves the highest number.

        Returns:
          The path of the SavedModel.
        """
        number = self.number
        path = Path(fspath(directory)) / str(number)
        if not path.exists():
            new = path.with_name(f".{number}")
            remove(new)
            try:
                tf.saved_model.save(self.model, str(new), signatures=dict(self.model.signatures))
                new.rename(path)
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise
            flush_to_disk(path.parent)
        return str(path)
