"""F4, a training rank: data, stage executor, optimizer, checkpoints."""
