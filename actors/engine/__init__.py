"""The engine of all actors: mail, loops and threads, time, supervision; it knows nothing of
messages of a broker.
"""
