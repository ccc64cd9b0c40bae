"""The loop of one commit, whatever a queue is kept in."""
