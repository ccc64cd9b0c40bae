"""Object storage adapters, one file each. Nothing but `read` and `write` is asked of them."""
