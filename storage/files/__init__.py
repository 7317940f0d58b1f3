"""Files on a disk: the disk itself, maps of fixed size, runs of them, and the lock of a store.

disk.py               what a disk can do, as two protocols; the disk of this machine
read_only_disk.py     a disk that lets nothing be changed
overlay_disk.py       a disk whose changes stay in memory
mapped_file.py        one file of fixed size: written with pwrite, read through a map
mapped_file_queue.py  a run of them, addressed by one offset
replace_file.py       a small file replaced as a whole
checked_json.py       small files of our own: a line of JSON and its CRC
lock_file.py          `lock` and `abort`
"""
