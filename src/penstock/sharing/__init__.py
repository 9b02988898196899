"""One folder, many processes: who owns a store lets the others in, and when it ends one of them sees to a new owner (ADR 0022)."""
