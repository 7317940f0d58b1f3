"""Metrics: what the broker and the name server count, as text for Prometheus.

    packed.py             a long text, compressed as it is made
    page.py               the text: families, labels, values; how many series there are
    selection.py          which topics and groups are shown; the rest as one
    lags.py               how far groups are behind, in messages and in time
    broker_page.py        the names of RocketMQ 5
    own_page.py           our names: actors, disk, replication, delays, transactions, jobs
    exporter_page.py      the names of rocketmq-exporter, for boards made for it
    client_figures.py     of these, those that only consumers know
    namesrv_page.py       a name server's
    process_page.py       of the process and its garbage collector: the library's
    tls_page.py           of TLS, for both
    http_text.py          requests and answers of HTTP
    page_server.py        the threads that listen; health has its pages there, too
    metrics_port.py       the actor that has pages made
    exposition.py         the actor that makes the text, on a thread

Nobody counts for a scrape: its thread reads counters that are kept anyway. What only the loop may
look at, MetricsPort reads before it asks for the text.
"""
