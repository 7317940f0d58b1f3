"""Print the topics whose groups have consumer lag, the largest first."""

import sys

from troupemq import Admin, ClientError


def print_lag(namesrv: str, least: int = 1) -> bool:
    """Return whether all brokers have answered."""
    with Admin(namesrv) as admin:
        traffic = admin.topic_traffic()
        late = [each for each in traffic if each.lag >= least]
        late.sort(key=lambda each: each.lag, reverse=True)
        for each in late:
            print(f"{each.topic} {each.group}: {each.lag:,} behind, {each.out_tps:.1f} a second")
            for queue in admin.group_progress(each.group):
                if queue.topic == each.topic and queue.lag:
                    print(f"    {queue.broker} queue {queue.queue_id}: {queue.lag:,}")
        for sentence in traffic.failures:
            print(sentence, file=sys.stderr)
        return not traffic.is_partial


if __name__ == "__main__":
    try:
        sys.exit(0 if print_lag(sys.argv[1]) else 1)
    except ClientError as error:
        sys.exit(str(error))
