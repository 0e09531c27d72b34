"""What a training job can use on this machine, and how to get what is missing."""
