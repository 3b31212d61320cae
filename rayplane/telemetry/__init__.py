"""F2, what happened: the metrics catalog and its export."""
