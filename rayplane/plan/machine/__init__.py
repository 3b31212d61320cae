"""What a plan is made on: devices, links, islands, and what was measured of them."""
