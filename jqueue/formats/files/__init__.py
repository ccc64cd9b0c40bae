"""File operations that several formats share: notes, remembered acks, folder syncs."""
