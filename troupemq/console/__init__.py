"""Browser console of a running cluster: pages for operators, each also as JSON.

The console is a client of the cluster: it sends the requests that `troupemq admin` sends, and
changes nothing except through the methods behind those commands. No other package imports it.
Without it, brokers run and `troupemq console` prints what to install.

parts.py      parts of a page: tables, facts, sentences, forms; /api gives them as JSON
rendering.py  pages as HTML, from templates/, with headings and the glossary
accounts.py   users, tokens and roles; sessions.py: logins; audit.py: log of changes
cluster.py    requests to brokers under one deadline; questions.py: those of a snapshot
snapshot.py   the data of all lists; watch.py: the newest snapshot
findings.py   current problems as sentences; alerts.py sends them
pages/        the pages; changes.py: the changes, each a command
app.py        checks before a request reaches a page; server.py, listener.py
"""
