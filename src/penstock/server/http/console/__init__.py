"""The console: a page for people. Its files lie in `static`; all that it shows it asks for over the same paths as any client."""
