"""Names of devices."""

# Of this process, in whichever job it is: the memory of tables, and what runs Python.
HOST = "/device:CPU:0"
