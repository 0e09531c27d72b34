"""Startup of a job: the rendezvous of its workers, and TensorFlow's gRPC servers."""
