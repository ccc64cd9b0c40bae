"""The clock, the dice, the threads and the file events of this machine."""
