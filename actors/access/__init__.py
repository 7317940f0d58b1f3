"""Access control: authentication and authorization of requests. Plain classes without threads.

    rights          required permission of each request code: one complete table per server
    grant           permissions of one sender, also for handlers that learn later what is asked
    authorizer      checks the requests of one connection: signature, account, permission
    access_state    state shared by all authorizers of a server: accounts, limits, counters
    refusals        counts of refusals, and the limit of failed signatures
    administration  addresses from which administrators may send requests
    acl_store       accounts in force, read from their files and changed by administrators

actors/admin/access_control.py owns the store and watches its files. storage/access/ knows their
format.
"""
