"""Groups of settings, the file formats they come from, and the keys of RocketMQ.

A setting without a key in RocketMQ 4.9.7 or 5 is a TroupeMQ extension. The room has no actors.
"""
