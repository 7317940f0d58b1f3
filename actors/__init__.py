"""Who does what, when: state, sockets, timers and in-flight requests, each owned by one actor.

    actor             owns                                   runs on   file
    Supervisor        the children, restart policy           loop      supervisor.py
    Connections       live connections, idle sweep           loop      connections.py
    Acceptor          listening sockets                      loop      connections.py
    Connection        one socket, its half-read frame        loop      connection.py
    PutMessage        the end of the log: the append lock    loop      put_message.py
    GroupCommit       sends that wait for disk or slave      loop      group_commit.py
    Flusher           one fdatasync of the log at a time     thread    flusher.py
    FlushRealTime     the async rhythm, the checkpoint       thread    flush_real_time.py
    AllocateFile      the next file of the log               thread    allocate_file.py
    CleanFiles        files that are out of use              thread    clean_files.py
    HaMaster          links to slaves, how far they are      loop      ha_master.py
    HaSlave           the connection to the master           loop      ha_slave.py
    PutReplica        the log's end, on a slave              loop      put_replica.py
    Dialler           opens connections to brokers           thread    dial.py
    SlaveSync         brings a slave the master's tables     thread    slave_sync.py
    Reput             consume queues, index                  loop      reput.py
    CatchUp           the index, where it is behind a start  thread    catch_up.py
    Scrubber          what of the log is damaged             thread    scrubber.py
    PullMessage       answers pulls                          loop      pull_message.py
    PullHold          pulls that wait for a message          loop      pull_hold.py
    ColdRead          reads what is not in memory            thread    cold_read.py
    QueueOffsets      answers about a queue's ends           loop      queue_offsets.py
    QueryMessage      finds messages by key and by id        thread    query_message.py
    QueueView         shows units of a queue                 loop      queue_view.py
    TopicTable        topics.json                            loop      topics.py
    GroupTable        subscriptionGroup.json                 loop      groups.py
    ConsumerOffsets   consumerOffset.json                    loop      consumer_offsets.py
    ConsumeStats      how far groups are, who consumes       loop      consume_stats.py
    OffsetReset       sends groups elsewhere                 loop      offset_reset.py
    LongAnswers       bodies of long answers                 thread    long_answers.py
    ConsumerCalls     what only a consumer can answer        thread    consumer_calls.py
    FilterTable       consumerFilter.json                    loop      consumer_filters.py
    SendBack          takes messages back from consumers     thread    send_back.py
    ReplyMessage      replies on their way to who asked      loop      reply_message.py
    DelayOffsets      delayOffset.json                       loop      delay_offsets.py
    Schedule          one delay level: what is due           loop      schedule.py
    Transactions      which transactions are being ended     loop      transactions.py
    OpenTransactionView  which of them nobody has ended      loop      open_transactions.py
    HalfMessageList   reads those                            thread    open_transactions.py
    Clients           who is connected as what               loop      clients.py
    ClientCalls       our requests to clients                loop      client_calls.py
    ConfigWriter      writes the JSON files                  thread    config_writer.py
    TableEncoder      writes large tables into answers       thread    table_encoder.py
    BrokerSettings    the settings file, while it serves     thread    settings.py
    NamesrvSettings   that of a name server                  thread    settings.py
    BrokerInfo        answers about the broker               loop      broker_info.py
    Statistics        what went through in a minute … day    thread    statistics.py
    Registration      which name server counts               loop      registration.py
    NamesrvLink       the broker's place at a name server    thread    namesrv_link.py
    Namesrv           the route table                        loop      namesrv.py
    RegistrationReader  reads large registrations            thread    registration_reader.py
    SparkJobs         the schedule of Spark jobs             loop      spark_jobs.py
    SparkJob          one run: a child process               thread    spark_job.py

An actor's class, handlers and failures: actor.py.  Where it runs: dispatchers.py (loop.py, and
simulated.py for tests).  How it is reached: address.py.  A broker's children in start order:
broker.py; its ports: broker_server.py; a name server's: namesrv_server.py.
"""
