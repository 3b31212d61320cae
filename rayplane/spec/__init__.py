"""F1, the words: what a user writes (pydantic) and what the program says of it (frozen dataclasses)."""
