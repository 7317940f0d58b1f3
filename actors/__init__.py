"""The actors: each owns a part of the state, a socket, a timer or requests under way.

    actor               owns                                on     file
    Supervisor          the children, restart policy        loop   engine/supervisor.py
    Connections         live connections, idle sweep        loop   network/connections.py
    Acceptor            listening sockets                   loop   network/connections.py
    Connection          one socket, what is in flight       loop   network/connection.py
    Entrance            those at the door: plain, or TLS    loop   network/entrance.py
    Handshakes          TLS: handshakes, certificates       thread network/handshakes.py
    Dialler             opens connections to brokers        thread network/dial.py
    LongAnswers         bodies of long answers              thread network/long_answers.py
    ClientCalls         our requests to clients             loop   network/client_calls.py
    PutMessage          the end of the log: the append lock loop   sending/put_message.py
    Sink                batches of sinks, each once         loop   sending/sink.py
    GroupCommit         sends that wait for disk or slave   loop   sending/group_commit.py
    Flusher             one fdatasync of the log at a time  thread sending/flusher.py
    FlushRealTime       the async rhythm, the checkpoint    thread sending/flush_real_time.py
    AllocateFile        the next file of the log            thread sending/allocate_file.py
    SendBack            takes messages back from consumers  thread sending/send_back.py
    ReplyMessage        replies on their way to who asked   loop   sending/reply_message.py
    CleanFiles          files out of use, readers' leases   thread retention/clean_files.py
    Reput               consume queues, index               loop   dispatching/reput.py
    CatchUp             the index behind a start            thread dispatching/catch_up.py
    Scrubber            what of the log is damaged          thread scrubbing/scrubber.py
    HaMaster            links to slaves, how far they are   loop   replication/ha_master.py
    HaSlave             the connection to the master        loop   replication/ha_slave.py
    PutReplica          the log's end, on a slave           loop   replication/put_replica.py
    SlaveSync           brings a slave the master's tables  thread replication/slave_sync.py
    PullMessage         answers pulls                       loop   pulling/pull_message.py
    PullHold            pulls that wait for a message       loop   pulling/pull_hold.py
    ColdRead            reads what is not in memory         thread pulling/cold_read.py
    RecordChecker       is a record what its queue has      loop   pulling/record_checker.py
    QueueOffsets        answers about a queue's ends        loop   pulling/queue_offsets.py
    QueryMessage        finds messages by key and by id     thread pulling/query_message.py
    QueueView           shows units of a queue              loop   pulling/queue_view.py
    RawRead             answers reads in bulk               loop   pulling/raw_read.py
    TopicTable          topics.json                         loop   tables/topics.py
    GroupTable          subscriptionGroup.json              loop   tables/groups.py
    ConsumerOffsets     consumerOffset.json                 loop   tables/consumer_offsets.py
    FilterTable         consumerFilter.json                 loop   tables/consumer_filters.py
    ConfigWriter        writes the JSON files               thread tables/config_writer.py
    TableEncoder        writes large tables into answers    thread tables/table_encoder.py
    ConsumeStats        how far groups are, who consumes    loop   consumers/consume_stats.py
    OffsetReset         sends groups elsewhere              loop   consumers/offset_reset.py
    ConsumerCalls       what only a consumer can answer     thread consumers/consumer_calls.py
    Clients             who is connected as what            loop   consumers/clients.py
    DelayOffsets        delayOffset.json                    loop   delays/delay_offsets.py
    Schedule            one delay level: what is due        loop   delays/schedule.py
    Transactions        which transactions are being ended  loop   transactions/transactions.py
    OpenTransactionView which of them nobody has ended      loop   transactions/open_transactions.py
    HalfMessageList     reads those                         thread transactions/open_transactions.py
    BrokerSettings      the settings file, while it serves  thread admin/settings.py
    AccessControl       the accounts, and their files       thread admin/access_control.py
    AclWatch            those of a name server, refusals    thread admin/access_control.py
    NamesrvSettings     that of a name server               thread admin/settings.py
    BrokerInfo          answers about the broker            loop   admin/broker_info.py
    Statistics          what went through in a minute … day thread statistics/statistics.py
    Registration        which name server counts            loop   naming/registration.py
    NamesrvLink         the broker's place at a name server thread naming/namesrv_link.py
    Namesrv             the route table                     loop   naming/namesrv.py
    RegistrationReader  reads large registrations           thread naming/registration_reader.py
    MetricsRenderer          the text of metrics                 thread metrics/exposition.py
    MetricsPort         who waits for which page of it      loop   metrics/metrics_port.py
    ClientFigures       what only consumers know            loop   metrics/client_figures.py
    SpanExport          spans, to a collector               thread spans/span_export.py
    SparkJobs           runs of Spark jobs, their schedule  loop   jobs/spark_jobs.py
    SparkJob            one run: a child process            thread jobs/spark_job.py

An actor's class, handlers and failures: engine/actor.py.  Where it runs: engine/dispatchers.py
(loop.py; in tests, a simulation).  How it is reached: engine/address.py.  A broker's children in
start order: broker.py, and what each is made with: children/; its ports: broker_server.py; a name
server's: namesrv_server.py.

The rooms, each importing only those before it (tests/test_architecture.py):

    engine/        actors, addresses, the loop, the supervisor; interfaces.py: what they share
    settings/      settings files, addresses of this machine; config.py: the settings
    access/        who asks, and may it
    network/       sockets, requests, calls to clients
    tables/        topics, groups, offsets, filters; views of them that others read
    statistics/    counters
    dispatching/   from the log to consume queues, index, transaction table
    retention/     leases, cleaning
    scrubbing/     the search for damage
    naming/        the name server, and the broker's place at it
    sending/       from a send to its answer
    pulling/       from a pull to its answer
    consumers/     clients and groups
    delays/        delayed messages
    transactions/  open transactions, their ends and check-backs
    replication/   master and slave
    admin/         settings and accounts that change while it serves, answers about the broker
    jobs/          Spark jobs
    metrics/       what is shown to Prometheus
    parts.py       what a broker is made of before any actor runs
    children/      what each actor is made with
"""
