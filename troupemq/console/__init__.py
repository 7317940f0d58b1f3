"""The console: pages for operators in a browser, and the same as JSON, of a running cluster.

It is a user of the cluster like any other: it asks by request codes, through what `troupemq admin`
is made of, and changes nothing but by its commands. Nothing else imports this folder: without it,
brokers run and `troupemq console` says what to install.

parts.py      what a page consists of: tables, facts, sentences, forms; the same becomes JSON
rendering.py  pages as HTML, by templates/
accounts.py   who may log in, and tokens; sessions.py: who is; audit.py: what they did
cluster.py    questions to brokers, with one deadline; snapshot.py: what all lists are made of
findings.py   what is wrong now, in sentences; alerts.py tells somebody who is not looking
pages/        the pages; changes.py: what they can change, each by a command
gate.py       limits and refusals before a page is asked; app.py; server.py
"""
