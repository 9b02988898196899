"""What a store does with bytes that are not what was written: everything is read back as it was, or a typed error says why not."""
