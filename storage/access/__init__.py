"""The files of access control: who may do what, as plain_acl.yml says it.

    conf/
    ├── plain_acl.yml       the default file: what is new goes here     acl_file
    └── acl/                more of the same, at any depth               acl_files
        └── *.yml *.yaml

    account         the account that a program of ours shows to such servers

All of them together are one snapshot, read whole and replaced whole; it is never changed.
"""
