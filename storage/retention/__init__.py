"""Retention: deletion of old log files, and trimming of the files derived from them.

cleaning.py           choice of log files to delete
trimming.py           removal of derived data of deleted log files
reserve.py            disk space that a store allocates at once
leases.py             leases of directory readers, which retain the log
archive_manifest.py   progress of an archive, from its manifests
unarchived.py         messages without an archive, for cleaning and the retention job
archive_policy.py     retention of files until they are archived
"""
