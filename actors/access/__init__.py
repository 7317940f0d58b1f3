"""Access control: who asks, and may it. Plain classes; nothing here waits or runs by itself.

    rights      what each request code needs: one table a server, complete, refusing what it lacks
    grant       one asker's permissions, also for handlers that find out later what is asked for
    gate        one connection's requests: signature, account, right
    guard       what all gates of a server share: the accounts in force, limits, counters
    refusals    who was refused what, for operators

    acl_store   the accounts in force, read from their files and changed by administrators

`actors/admin/access_control.py` owns the store and watches the files, `storage/access/` knows their
form.
"""
