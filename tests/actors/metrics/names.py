"""Metric names that dashboards and other tools use, as in their sources."""


def _names(text: str) -> frozenset[str]:
    return frozenset(f"rocketmq_{name}" for name in text.split())


NATIVE = _names(
    """
    broker_permission commit_messages_total consumer_connections
    consumer_group_create_execution_time_milliseconds consumer_group_number
    consumer_inflight_messages consumer_lag_latency consumer_lag_latency_milliseconds
    consumer_lag_messages consumer_queueing_latency consumer_queueing_latency_milliseconds
    consumer_ready_messages finish_message_latency_milliseconds half_messages message_size
    messages_in_total messages_out_total processor_watermark producer_connections
    rollback_messages_total rpc_latency_milliseconds send_to_dlq_messages_total
    storage_dispatch_behind_bytes storage_flush_behind_bytes
    storage_message_reserve_time_milliseconds storage_size_bytes throughput_in_total
    throughput_out_total topic_create_execution_time_milliseconds topic_number
    """
)
"""Names of RocketMQ 5's brokers since 5.1.4, and two from its documents, without a unit."""

EXPORTER = _names(
    """
    broker_commitlog_diff broker_qps broker_tps brokeruntime_commitlog_disk_ratio
    brokeruntime_commitlog_maxoffset brokeruntime_commitlog_minoffset
    brokeruntime_commitlogdir_capacity_free brokeruntime_commitlogdir_capacity_total
    brokeruntime_consumequeue_disk_ratio brokeruntime_dispatch_behind_bytes
    brokeruntime_dispatch_maxbuffer brokeruntime_earliest_message_timestamp
    brokeruntime_getfound_tps10 brokeruntime_getfound_tps60 brokeruntime_getfound_tps600
    brokeruntime_getmessage_entire_time_max brokeruntime_getmiss_tps10
    brokeruntime_getmiss_tps60 brokeruntime_getmiss_tps600 brokeruntime_gettotal_tps10
    brokeruntime_gettotal_tps60 brokeruntime_gettotal_tps600 brokeruntime_gettransfered_tps10
    brokeruntime_gettransfered_tps60 brokeruntime_gettransfered_tps600
    brokeruntime_msg_gettotal_today_now brokeruntime_msg_gettotal_todaymorning
    brokeruntime_msg_gettotal_yesterdaymorning brokeruntime_msg_put_total_today_now
    brokeruntime_msg_puttotal_todaymorning brokeruntime_msg_puttotal_yesterdaymorning
    brokeruntime_pagecache_lock_time_mills brokeruntime_pmdt_0ms brokeruntime_pmdt_0to10ms
    brokeruntime_pmdt_100to200ms brokeruntime_pmdt_10stomore brokeruntime_pmdt_10to50ms
    brokeruntime_pmdt_1to2s brokeruntime_pmdt_200to500ms brokeruntime_pmdt_2to3s
    brokeruntime_pmdt_3to4s brokeruntime_pmdt_4to5s brokeruntime_pmdt_500to1s
    brokeruntime_pmdt_50to100ms brokeruntime_pmdt_5to10s
    brokeruntime_pull_threadpoolqueue_capacity
    brokeruntime_pull_threadpoolqueue_headwait_timemills brokeruntime_pull_threadpoolqueue_size
    brokeruntime_put_latency_99 brokeruntime_put_latency_999
    brokeruntime_put_message_average_size brokeruntime_put_message_size_total
    brokeruntime_put_tps10 brokeruntime_put_tps60 brokeruntime_put_tps600
    brokeruntime_putmessage_entire_time_max brokeruntime_putmessage_times_total
    brokeruntime_query_threadpool_queue_capacity
    brokeruntime_query_threadpoolqueue_headwait_timemills
    brokeruntime_query_threadpoolqueue_size brokeruntime_remain_howmanydata_toflush
    brokeruntime_remain_transientstore_buffer_numbs brokeruntime_send_threadpool_queue_size
    brokeruntime_send_threadpoolqueue_capacity
    brokeruntime_send_threadpoolqueue_headwait_timemills
    brokeruntime_start_accept_sendrequest_time client_consume_fail_msg_count
    client_consume_fail_msg_tps client_consume_ok_msg_tps client_consume_rt
    client_consumer_pull_rt client_consumer_pull_tps consumer_message_size consumer_offset
    consumer_tps group_consume_total_offset group_consume_tps group_count group_diff
    group_dlqdiff group_get_latency_by_storetime group_retrydiff producer_count
    producer_message_size producer_offset producer_tps send_back_nums topic_dlq_offset
    topic_retry_offset
    """
)
"""All 89 names of rocketmq-exporter (RMQMetricsCollector)."""

BOARD_10477 = _names(
    """
    broker_qps broker_tps brokeruntime_commitlog_disk_ratio brokeruntime_commitlog_maxoffset
    brokeruntime_commitlog_minoffset brokeruntime_commitlogdir_capacity_free
    brokeruntime_commitlogdir_capacity_total brokeruntime_consumequeue_disk_ratio
    brokeruntime_dispatch_behind_bytes brokeruntime_getfound_tps10 brokeruntime_getmiss_tps10
    brokeruntime_gettotal_tps10 brokeruntime_gettransfered_tps10
    brokeruntime_msg_gettotal_today_now brokeruntime_msg_gettotal_todaymorning
    brokeruntime_msg_gettotal_yesterdaymorning brokeruntime_msg_put_total_today_now
    brokeruntime_msg_puttotal_todaymorning brokeruntime_msg_puttotal_yesterdaymorning
    brokeruntime_pmdt_0ms brokeruntime_pmdt_0to10ms brokeruntime_pmdt_100to200ms
    brokeruntime_pmdt_10stomore brokeruntime_pmdt_10to50ms brokeruntime_pmdt_1to2s
    brokeruntime_pmdt_200to500ms brokeruntime_pmdt_2to3s brokeruntime_pmdt_3to4s
    brokeruntime_pmdt_4to5s brokeruntime_pmdt_500to1s brokeruntime_pmdt_50to100ms
    brokeruntime_pmdt_5to10s brokeruntime_pull_threadpoolqueue_headwait_timemills
    brokeruntime_put_message_average_size brokeruntime_put_message_size_total
    brokeruntime_put_tps10 brokeruntime_query_threadpoolqueue_headwait_timemills
    brokeruntime_send_threadpoolqueue_headwait_timemills client_consume_fail_msg_count
    client_consume_fail_msg_tps client_consume_ok_msg_tps client_consume_rt
    client_consumer_pull_rt client_consumer_pull_tps consumer_message_size consumer_offset
    consumer_tps group_get_latency_by_storetime producer_message_size producer_offset
    producer_tps
    """
)
"""Names in the panels of Grafana's dashboard 10477.

One panel joins producer_offset by topic with consumer_offset by group and topic.
"""

BOARD_OF_THE_EXPORTER = _names(
    """
    broker_qps broker_tps brokeruntime_commitlog_disk_ratio brokeruntime_commitlog_maxoffset
    brokeruntime_commitlog_minoffset brokeruntime_dispatch_behind_bytes
    brokeruntime_earliest_message_timestamp brokeruntime_msg_gettotal_today_now
    brokeruntime_msg_gettotal_todaymorning brokeruntime_msg_put_total_today_now
    brokeruntime_msg_puttotal_todaymorning brokeruntime_pmdt_0ms brokeruntime_pmdt_0to10ms
    brokeruntime_pmdt_100to200ms brokeruntime_pmdt_10to50ms brokeruntime_pmdt_1to2s
    brokeruntime_pmdt_200to500ms brokeruntime_pmdt_2to3s brokeruntime_pmdt_3to4s
    brokeruntime_pmdt_500to1s brokeruntime_pmdt_50to100ms
    brokeruntime_pull_threadpoolqueue_headwait_timemills
    brokeruntime_query_threadpoolqueue_headwait_timemills
    brokeruntime_send_threadpoolqueue_headwait_timemills client_consume_fail_msg_count
    client_consume_ok_msg_tps client_consume_rt client_consumer_pull_rt client_consumer_pull_tps
    consumer_message_size consumer_offset consumer_tps group_diff group_get_latency_by_storetime
    group_retrydiff producer_message_size producer_offset producer_tps topic_dlq_offset
    topic_retry_offset
    """
)
"""Names in the second dashboard of the exporter's source tree (rocketmq_exporter.json).

Grafana's 14612 uses the same names, but only grafana.com has its JSON.
"""
