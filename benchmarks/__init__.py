"""How fast the queue is: against its own first release, against other queues, and against what the disk allows."""
