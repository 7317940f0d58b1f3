"""Transactions: half messages, their commit or rollback, and check-backs of the open ones.

Connection          → Transactions     Request: END_TRANSACTION, RESUME_CHECK_HALF_MESSAGE
Transactions        → PutMessage       InternalAppend, InternalAppendGroup; EndsStored,
                                       ChecksStored, FinishesStored or ResumeStored answers
Transactions        → ColdRead         ReadCold; ColdReadOfHalf answers
Transactions        → Reput            AwaitDispatch; ColdReadOfHalf answers
Transactions        → a producer       CHECK_TRANSACTION_STATE
Transactions        → Flusher          Sync; Synced answers
Transactions        → ConsumerOffsets  CommitOffset of CID_RMQ_SYS_TRANS
Connection          → OpenTransactionView
                                       Request: GET_OPEN_TRANSACTIONS
OpenTransactionView → HalfMessageList  ListOpen
"""
