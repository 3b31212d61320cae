"""The choice of a layout, its place on the cluster, and the reasons."""
