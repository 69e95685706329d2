"""Fake GPU drivers in C, and the script that builds their tables."""
