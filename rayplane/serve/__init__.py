"""Serving: one engine per replica, whose first stage decides what every step computes."""
