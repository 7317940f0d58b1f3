"""Replication of the commit log from a master to its slaves, and of the master's tables.

in a master: HaMaster has one SlaveLink for each slave (ha_master.py, ha_link.py)
PutMessage, GroupCommit → HaMaster      LogGrew
HaMaster                → GroupCommit   Acked
HaMaster                ↔ ColdRead      ReadCold, ColdReadForSlave, Unreadable

in a slave: HaSlave, PutReplica, SlaveSync
Registration            → HaSlave       MasterHaAddress
Registration            → SlaveSync     MasterClientAddress
HaSlave                 ↔ PutReplica    AppendReplica, Replicated
PutReplica              → SlaveSync     UnknownTopics
"""
