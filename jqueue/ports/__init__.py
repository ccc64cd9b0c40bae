"""The interfaces between the queue and the world: storage, clock, queue."""
