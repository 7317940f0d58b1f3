"""All setting keys of RocketMQ 4.9.7, as found in broker.conf or namesrv.conf.

A key is the name of a setter in one of 4.9.7's configuration classes, or of a system property.

Source: BrokerConfig, MessageStoreConfig, NettyServerConfig, NettyClientConfig, NamesrvConfig,
TlsSystemConfig, NettySystemConfig, BrokerStartup.properties2SystemEnv.
"""


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


BROKER_KEYS = _keys(
    """
    aclEnable adminBrokerThreadPoolNums autoCreateSubscriptionGroup autoCreateTopicEnable
    autoDeleteUnusedStats brokerClusterName brokerFastFailureEnable brokerIP1 brokerIP2 brokerId
    brokerName brokerPermission brokerTopicEnable clientManageThreadPoolNums
    clientManagerThreadPoolQueueCapacity clusterTopicEnable commercialBaseCount
    commercialBigCount commercialEnable commercialTimerCount commercialTransCount
    compressedRegister consumerFallbehindThreshold consumerManageThreadPoolNums
    consumerManagerThreadPoolQueueCapacity defaultTopicQueueNums
    disableConsumeIfConsumerReadSlowly enableCalcFilterBitMap enableDetailStat
    enablePropertyFilter endTransactionPoolQueueCapacity endTransactionThreadPoolNums
    expectConsumerNumUseFilter fetchNamesrvAddrByAddressServer filterDataCleanTimeSpan
    filterServerNums filterSupportRetry flushConsumerOffsetHistoryInterval
    flushConsumerOffsetInterval forceRegister heartbeatThreadPoolNums
    heartbeatThreadPoolQueueCapacity highSpeedMode isolateLogEnable longPollingEnable
    maxDelayTime maxErrorRateOfBloomFilter messageStorePlugIn msgTraceTopicName namesrvAddr
    notifyConsumerIdsChangedEnable processReplyMessageThreadPoolNums pullMessageThreadPoolNums
    pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putThreadPoolQueueCapacity
    queryMessageThreadPoolNums queryThreadPoolQueueCapacity regionId registerBrokerTimeoutMills
    registerNameServerPeriod rejectTransactionMessage replyThreadPoolQueueCapacity rocketmqHome
    sendMessageThreadPoolNums sendThreadPoolQueueCapacity shortPollingTimeMills slaveReadEnable
    startAcceptSendRequestTimeStamp storeReplyMessageEnable traceOn traceTopicEnable
    transactionCheckInterval transactionCheckMax transactionTimeOut transferMsgByHeap
    waitTimeMillsInHeartbeatQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
    waitTimeMillsInTransactionQueue
    """
)

STORE_KEYS = _keys(
    """
    accessMessageInMemoryMaxRatio bitMapLengthConsumeQueueExt brokerRole checkCRCOnRecover
    cleanFileForciblyEnable cleanResourceInterval commitCommitLogLeastPages
    commitCommitLogThoroughInterval commitIntervalCommitLog dLegerGroup dLegerPeers dLegerSelfId
    debugLockEnable defaultQueryMaxNum deleteCommitLogFilesInterval
    deleteConsumeQueueFilesInterval deleteWhen destroyMapedFileIntervalForcibly diskFallRecorded
    diskMaxUsedSpaceRatio duplicationEnable enableBatchPush enableConsumeQueueExt
    enableDLegerCommitLog enableLmq enableMultiDispatch enableScheduleAsyncDeliver
    enableScheduleMessageStats fastFailIfNoBufferInStorePool fileReservedTime
    flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed
    flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushDelayOffsetInterval
    flushDiskType flushIntervalCommitLog flushIntervalConsumeQueue
    flushLeastPagesWhenWarmMapedFile haHousekeepingInterval haListenPort haMasterAddress
    haSendHeartbeatInterval haSlaveFallbehindMax haTransferBatchSize isEnableBatchPush
    mappedFileSizeCommitLog
    mappedFileSizeConsumeQueue mappedFileSizeConsumeQueueExt maxHashSlotNum maxIndexNum
    maxLmqConsumeQueueNum maxMessageSize maxMsgsNumBatch maxTransferBytesOnMessageInDisk
    maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk
    maxTransferCountOnMessageInMemory messageDelayLevel messageIndexEnable messageIndexSafe
    offsetCheckInSlave osPageCacheBusyTimeOutMills preferredLeaderId putMsgIndexHightWater
    readOnlyCommitLogStorePaths redeleteHangedFileInterval scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked slaveTimeout storePathCommitLog
    storePathDLedgerCommitLog storePathRootDir syncFlushTimeout transientStorePoolEnable
    transientStorePoolSize useReentrantLockWhenPutMessage warmMapedFileEnable
    """
)

SERVER_KEYS = _keys(
    """
    listenPort serverAsyncSemaphoreValue serverCallbackExecutorThreads
    serverChannelMaxIdleTimeSeconds serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads useEpollNativeSelector
    writeBufferHighWaterMark writeBufferLowWaterMark
    """
)

CLIENT_KEYS = _keys(
    """
    channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
    clientWorkerThreads connectTimeoutMillis useTLS writeBufferHighWaterMark
    writeBufferLowWaterMark
    """
)

NAMESRV_KEYS = _keys(
    """
    clusterTest configStorePath kvConfigPath orderMessageEnable productEnvName rocketmqHome
    """
)

TLS_KEYS = _keys(
    """
    tls.client.authServer tls.client.certPath tls.client.keyPassword tls.client.keyPath
    tls.client.trustCertPath tls.config.file tls.enable tls.server.authClient
    tls.server.certPath tls.server.keyPassword tls.server.keyPath tls.server.mode
    tls.server.need.client.auth tls.server.trustCertPath tls.test.mode.enable
    """
)

SYSTEM_KEYS = _keys(
    """
    com.rocketmq.remoting.client.channel.maxIdleTimeSeconds
    com.rocketmq.remoting.client.closeSocketIfTimeout
    com.rocketmq.remoting.client.connect.timeout com.rocketmq.remoting.client.worker.size
    com.rocketmq.remoting.clientAsyncSemaphoreValue
    com.rocketmq.remoting.clientOnewaySemaphoreValue com.rocketmq.remoting.frameMaxLength
    com.rocketmq.remoting.nettyPooledByteBufAllocatorEnable com.rocketmq.remoting.socket.backlog
    com.rocketmq.remoting.socket.rcvbuf.size com.rocketmq.remoting.socket.sndbuf.size
    com.rocketmq.remoting.write.buffer.high.water.mark
    com.rocketmq.remoting.write.buffer.low.water.mark rmqAddressServerDomain
    rmqAddressServerSubGroup rocketmq.broker.diskSpaceCleanForciblyRatio
    rocketmq.broker.diskSpaceWarningLevelRatio rocketmq.broker.multiPathSplitter
    rocketmq.broker.rebalance.lockMaxLiveTime rocketmq.home.dir rocketmq.namesrv.addr
    rocketmq.namesrv.domain rocketmq.namesrv.domain.subgroup rocketmq.remoting.version
    rocketmq.serialize.type
    """
)

BROKER_FILE_KEYS = BROKER_KEYS | STORE_KEYS | SERVER_KEYS | CLIENT_KEYS | TLS_KEYS | SYSTEM_KEYS
"""Valid keys of a broker's file."""

NAMESRV_FILE_KEYS = NAMESRV_KEYS | SERVER_KEYS | TLS_KEYS | SYSTEM_KEYS
"""Valid keys of a name server's file."""

OLD_SPELLINGS = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
    "mapedFileSizeConsumeQueueExt": "mappedFileSizeConsumeQueueExt",
}
"""Keys of older files, which 4.9.7 ignores silently, with their present names."""
