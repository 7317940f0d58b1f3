"""Site of the manual: its configuration, and the pages generated from the code."""
