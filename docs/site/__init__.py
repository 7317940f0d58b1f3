"""The site of the manual: its settings, and the pages that are made from the code."""
