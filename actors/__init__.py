"""Actors of a broker and a name server.

Each actor owns a part of the state, a socket, a timer, or pending requests.

    actor               owns or does                        on     file
    Supervisor          the children, restart policy        loop   engine/supervisor.py
    Connections         live connections, idle sweep        loop   network/connections.py
    Acceptor            listening sockets                   loop   network/connections.py
    Connection          one socket, its in-flight bytes     loop   network/connection.py
    TlsNegotiator       new connections of ports with TLS   loop   network/tls_negotiator.py
    Handshakes          TLS handshakes, certificates        thread network/tls_negotiator.py
    Dialler             opens connections to brokers        thread network/dial.py
    LongAnswers         encodes bodies of long answers      thread network/long_answers.py
    ClientCalls         pending requests to clients         loop   network/client_calls.py
    PutMessage          the end of the commit log           loop   sending/put_message.py
    Sink                batches of sinks, stored once       loop   sending/sink.py
    GroupCommit         sends that wait for disk or slave   loop   sending/group_commit.py
    Flusher             one fdatasync of the log at a time  thread sending/flush_real_time.py
    FlushRealTime       periodic flush, the checkpoint      thread sending/flush_real_time.py
    AllocateFile        the next file of the log            thread sending/allocate_file.py
    SendBack            messages sent back by consumers     thread sending/send_back.py
    ReplyMessage        replies on their way to requesters  loop   sending/reply_message.py
    CleanFiles          expired files, leases of readers    thread retention/clean_files.py
    Reput               consume queues, index               loop   dispatching/reput.py
    CatchUp             the index after a start             thread dispatching/catch_up.py
    Scrubber            the search for damaged records      thread scrubbing/scrubber.py
    HaMaster            links to slaves, their offsets      loop   replication/ha_master.py
    HaSlave             the connection to the master        loop   replication/ha_slave.py
    PutReplica          the end of the log, on a slave      loop   replication/put_replica.py
    SlaveSync           copies the master's tables          thread replication/slave_sync.py
    PullMessage         answers pulls                       loop   pulling/pull_message.py
    PullHold            held pulls                          loop   pulling/pull_hold.py
    ColdRead            reads data not in the page cache    thread pulling/cold_read.py
    RecordChecker       compares records with their units   loop   pulling/query_message.py
    Receipts            messages received one by one        loop   receipts/receipts.py
    QueueOffsets        answers queries of queue offsets    loop   pulling/queue_view.py
    QueryMessage        finds messages by key and by id     thread pulling/query_message.py
    QueueView           shows units of a queue              loop   pulling/queue_view.py
    RawRead             answers reads in bulk               loop   pulling/raw_read.py
    TopicTable          topics.json                         loop   tables/topics.py
    GroupTable          subscriptionGroup.json              loop   tables/groups.py
    ConsumerOffsets     consumerOffset.json                 loop   tables/consumer_offsets.py
    FilterTable         consumerFilter.json                 loop   tables/consumer_filters.py
    RequestModes        messageRequestMode.json             loop   tables/request_modes.py
    ConfigWriter        writes the JSON files               thread tables/config_writer.py
    TableEncoder        encodes tables, reads long bodies   thread tables/config_writer.py
    ConsumeStats        answers about groups' progress      loop   consumers/consume_stats.py
    OffsetReset         resets offsets of groups            loop   consumers/offset_reset.py
    ConsumerCalls       asks consumers for administrators   thread consumers/consumer_calls.py
    Clients             connected producers and consumers   loop   consumers/clients.py
    Assignments         answers with a client's queues      loop   consumers/assignments.py
    DelayOffsets        delayOffset.json                    loop   delays/delay_offsets.py
    Schedule            due messages of one delay level     loop   delays/schedule.py
    TimerScan           looks for timers after a start      thread delays/level_timers.py
    Recalls             cancels pending timers              thread delays/recalls.py
    Transactions        ends and check-backs in progress    loop   transactions/transactions.py
    OpenTransactionView answers about open transactions     loop   transactions/half_messages.py
    HalfMessageList     reads open half messages            thread transactions/half_messages.py
    BrokerSettings      a broker's settings file            thread admin/settings.py
    AccessControl       a broker's accounts, their files    thread admin/access_control.py
    AclWatch            a name server's accounts            thread admin/access_control.py
    NamesrvSettings     a name server's settings file       thread admin/settings.py
    BrokerInfo          answers about the broker            loop   admin/broker_info.py
    Statistics          throughput per minute, hour, day    thread statistics/statistics.py
    Registration        the state at all name servers       loop   naming/registration.py
    NamesrvLink         the link to one name server         thread naming/namesrv_link.py
    Namesrv             the route table                     loop   naming/namesrv.py
    RegistrationReader  decodes large registrations         thread naming/registration_reader.py
    MetricsRenderer     the text of metrics                 thread metrics/metrics_renderer.py
    MetricsPort         pending requests for metrics pages  loop   metrics/metrics_port.py
    ClientFigures       figures that only consumers have    loop   metrics/client_figures.py
    SpanExport          sends spans to a collector          thread spans/span_export.py
    SparkJobs           runs of Spark jobs, their schedule  loop   jobs/spark_jobs.py
    SparkJob            one run in a child process          thread jobs/spark_job.py

engine/ holds the actor class (actor.py), the places where actors run (dispatchers.py, loop.py) and
their addresses (actor_address.py). broker.py lists a broker's children in start order, and
broker_server.py its ports. namesrv_server.py has both for a name server.

The rooms, each importing only earlier ones (tests/test_architecture.py):

    engine/        actors, addresses, the loop, the supervisor
    settings/      settings files, addresses of this machine; config.py has the settings
    access/        authentication and authorization
    network/       sockets, requests, calls to clients
    tables/        topics, groups, offsets, filters, and their snapshots
    statistics/    counters
    dispatching/   from the commit log to consume queues, index and transaction table
    retention/     leases, cleaning
    scrubbing/     search for damage
    naming/        the name server, and a broker's registration
    sending/       from a send to its answer
    pulling/       from a pull to its answer
    receipts/      from a receive to the end of each message
    consumers/     clients and groups
    delays/        delayed messages
    transactions/  open transactions, their ends and check-backs
    replication/   master and slave
    admin/         live changes of settings and accounts, answers about the broker
    jobs/          Spark jobs
    spans/         OpenTelemetry spans
    metrics/       Prometheus metrics
    parts.py       parts of a broker that exist before any actor runs
    children/      construction of each actor
"""
