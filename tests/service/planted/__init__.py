"""Faults to be planted in a worker and its attempts from outside; nothing of Stint knows of them."""
