"""The loop of one commit, for queues of every kind."""
