"""F3, the model: written once, knows axis names, knows no rank."""
