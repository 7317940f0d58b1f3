"""Followers of the commit log: reput feeds the consume queues, the index and who waits."""
