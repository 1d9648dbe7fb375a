"""Measurements, one module each; `python3 dev.py bench [name]` runs them."""
