"""Files on a disk: the disk itself, maps of fixed size, runs of them, and the lock of a store.

disk.py               two protocols for a disk, and the disk of this machine
read_only_disk.py     a disk without changes
overlay_disk.py       a disk with changes in memory only
mapped_file.py        files of fixed size, written with pwrite and read through maps; a run of them
checked_json.py       replaces a small file; a line of JSON and its CRC (TroupeMQ extension)
lock_file.py          `lock` and `abort`
"""
