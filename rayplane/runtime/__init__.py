"""F4, the owner of rank processes: on this machine (LocalGroup) or on a Ray cluster (RayGroup)."""
