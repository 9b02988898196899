"""Tests of the journal: frames on disk, tickets, commit cycles."""
