"""Horovod's environment variables, and the build of its wheel."""
