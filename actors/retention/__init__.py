"""The age and the leases of the log's files, and the deleting of what is out of use."""
