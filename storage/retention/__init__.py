"""Room on the disk: old files that may go, and what is derived of them.

cleaning.py           which files of the log may go, and why
trimming.py           what is derived of the log, taken out of use behind its new beginning
reserve.py            how much disk a store takes at once
leases.py             readers of the directory that keep the log from an offset on
archive_manifest.py   how far an archive is, by its manifests
unarchived.py         which messages no archive has: the rule of cleaning and the retention job
archive_policy.py     keeps files until the archive has them
"""
