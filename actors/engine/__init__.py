"""What actors are made of: mail, loops and threads, time, supervision; knows nothing of
messages of a broker.
"""
