"""Verify, opening and repair agree, whatever was done to a store."""
