"""Starting, watching and ending the processes of a job's tasks."""
