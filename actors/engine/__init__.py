"""Engine of all actors: inboxes, the loop and threads, time, supervision.

It knows no message of a broker. These are its own (messages.py, and supervisor.py for the last):

    dispatcher → actor              BatchEnd
    supervisor → child              Drain, Stop
    actor, dispatcher → its parent  Started, Exited
    ActorSystem → supervisor        Launch, Ping, Shut
"""
