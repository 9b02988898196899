"""The client and the server of the native protocol, over real sockets."""
