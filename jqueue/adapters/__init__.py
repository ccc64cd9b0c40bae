"""The stores: implementations of the port for storages."""
