"""Clients and consumer groups: who is there, locks of queues, resets, what groups have consumed."""
