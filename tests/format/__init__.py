"""The codecs of every format, each alone: what is encoded is decoded, and nothing else is."""
