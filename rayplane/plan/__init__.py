"""F2, the planner: prices layouts and picks one. Standard library and numpy only."""
