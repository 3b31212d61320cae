"""F2, what ranks say to each other: communicators, the mesh, autograd-aware collectives, point-to-point, the byte ledger."""
