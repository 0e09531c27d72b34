"""How workers meet at the start, and TensorFlow's server of each."""
