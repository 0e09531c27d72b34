"""What a training job can use on this machine, and how to get what is missing."""

# In version 0.1.0, `tf_config.doctor` was the module of these; see tf_config/moved_modules.py.
from tf_config.doctor.report import PROBES, Finding, Line, Probe, examine, exit_code, within

__all__ = ["PROBES", "Finding", "Line", "Probe", "examine", "exit_code", "within"]
