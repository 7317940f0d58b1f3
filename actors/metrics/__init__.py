"""Prometheus metrics of a broker and a name server.

    page.py               text of one page: families, labels, values; compressed as it is written
    selection.py          topics and groups to show; the rest as `other`
    lags.py               consumer lag in messages and in time
    broker_page.py        metric names of RocketMQ 5
    own_page.py           TroupeMQ extensions: actors, disk, replication, delays, jobs
    exporter_page.py      metric names of rocketmq-exporter, for its dashboards
    client_figures.py     those of them that only consumers know
    server_page.py        page of a name server, and its parts that brokers have too
    page_server.py        listening threads, HTTP requests and responses, shared with health
    sources.py            what pages are made of
    metrics_port.py       actor on the loop that accepts requests for pages
    metrics_renderer.py   actor on a thread that writes the text

    page server threads → MetricsPort      AskPage
    MetricsPort         → MetricsRenderer  MakePage, for some pages through ClientFigures
    MetricsRenderer     → MetricsPort      PageMade, TakeTime

    MetricsPort         → actors on the loop  AskFigures; each replies with a frozen object

No code counts for a scrape alone. The thread reads frozen figures, published snapshots, the store,
and counters of one writer, which only grow (docs/decisions/0066).
"""
