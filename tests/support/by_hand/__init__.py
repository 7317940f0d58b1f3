"""Data of every format in the shape of the golden data, made here from its description alone.

A clone without the golden data runs the same tests on it. Nothing here uses the code under test:
bytes are put together with `struct`, JSON is written out.
"""

BY_HAND = "by-hand"
"""Name of this data among the recordings and stores."""
