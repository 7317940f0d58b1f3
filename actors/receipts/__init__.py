"""Messages received and settled one by one: RocketMQ 5's POP without its revive log.

Connection      → Receipts        Request: receives, notifications, acknowledgements, changes
Receipts        → Connection      header and views of the log
Reput           → Receipts        Arrived, CaughtUp, QueuesEmptied: wake receives
Receipts        → ConsumerOffsets AdvanceOffsets: what is settled or safely copied, and the answers
                                  that leave when it is written; OffsetsAdvanced answers
Receipts        → SendBack        ReturnHeld: a copy, as a retry, a dead letter, or still in flight
SendBack        → PutMessage      InternalAppend; HeldReturned answers Receipts
Receipts        → ColdRead        ReadCold; ReceiveAgain comes back
Receipts        → FilterTable     CompileFirst; ReceiveAgain comes back
Receipts        → Scrubber        VerifyUnit; UnitVerified answers
Clients         → Receipts        MemberLeft
Connections     → Receipts        PeerClosed

receipts.py is the actor. Its plain classes: ledger.py, one queue of one group; ledgers.py, all of
them in step with the consumer offsets; hand_out.py, what a receive gets; settlement.py, what
becomes of it, and when; held_receives.py, long polling; receive_rules.py, checks; neighbours.py,
groups with pulls as well; figures.py, what is shown.
"""
