"""An app that takes orders and confirms them by mail."""
