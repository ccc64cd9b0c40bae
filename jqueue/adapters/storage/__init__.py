"""Object storage adapters, one file each. A queue needs only their `read` and `write`."""
