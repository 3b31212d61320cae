"""The parts of the page that explains a plan, one per file, in the order in which they stand on it."""
