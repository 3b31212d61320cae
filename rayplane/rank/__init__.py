"""A rank's process, whatever it does: its life and its line to its owner."""
