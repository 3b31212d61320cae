"""F5, the controller: react() decides, loop carries out."""
