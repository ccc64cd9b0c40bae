"""Several queues as one to take jobs from."""
