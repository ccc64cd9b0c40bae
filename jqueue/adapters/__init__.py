"""The stores: implementations of the storage port."""
