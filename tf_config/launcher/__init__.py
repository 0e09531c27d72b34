"""Starts, watches and ends the processes of a job's tasks."""
