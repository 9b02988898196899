"""Crashes on real file systems: what a simulated disk cannot prove."""
