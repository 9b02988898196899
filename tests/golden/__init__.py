"""
Golden files: bytes that were written once and must be readable for ever.

A test encodes what each file stands for and compares, so that a layout does not change by accident; and it decodes the file,
so that what is in the field stays readable. `PENSTOCK_REGENERATE_GOLDEN=1 pytest tests/golden` writes the files that are missing
and leaves the others alone: a new format gets a new file beside the old ones. To change one on purpose, delete it first.
"""
