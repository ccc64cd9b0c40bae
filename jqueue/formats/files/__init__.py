"""What several formats do with files: notes, listings, exclusive renames."""
