"""The price and the choice of serving layouts."""
