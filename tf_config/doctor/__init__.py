"""Reports what a training job can use on this machine, and how to install what is missing."""

# In version 0.1.0, `tf_config.doctor` was a module with these names.
from tf_config.doctor.report import PROBES, Finding, Line, Probe, examine, exit_code, within

__all__ = ["PROBES", "Finding", "Line", "Probe", "examine", "exit_code", "within"]
