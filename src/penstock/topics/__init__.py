"""Topics: naming, partitioning, checking and deduplicating what is published."""
