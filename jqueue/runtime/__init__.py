"""The clock, the randomness, the threads and the file events of this machine."""
