"""The price of a training step: seconds and bytes of a layout."""
