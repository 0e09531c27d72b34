"""Names of devices."""

# The CPU of this process, in whichever job it is, where tables are held and Python functions run.
HOST = "/device:CPU:0"
