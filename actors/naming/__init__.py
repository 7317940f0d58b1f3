"""The name server, and what keeps a broker registered at name servers."""
