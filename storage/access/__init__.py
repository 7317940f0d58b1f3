"""Files of access control: accounts and permissions from plain_acl.yml.

    conf/
    ├── plain_acl.yml       the default file, which gets new entries    acl_yaml, acl_file
    └── acl/                further files, at any depth                 acl_files
        └── *.yml *.yaml
    account         the account that a TroupeMQ program presents to such servers

All files together form one immutable snapshot, read as a whole and replaced as a whole.
"""
