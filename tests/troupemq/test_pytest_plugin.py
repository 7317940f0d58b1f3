"""The fixtures that pytest finds in an installed TroupeMQ, and the page that shows them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest_plugins = ("pytester",)

HERE = ("-p", "no:troupemq", "-p", "troupemq.pytest_plugin", "-p", "no:cacheprovider")
"""Options that load the fixtures from here, whether or not TroupeMQ is installed."""


def test_order_service_of_the_page_is_tested_as_it_says(pytester: pytest.Pytester) -> None:
    page = (ROOT / "docs/testing.md").read_text()
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL):
        pytester.path.joinpath(name).write_text(text)
    pytester.syspathinsert()
    pytester.runpytest_inprocess(*HERE).assert_outcomes(passed=11)


def test_one_broker_serves_a_session_that_asks_for_it(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntroupemq_scope = session")
    pytester.makepyfile(
        """
        from troupemq import Message
        seen = set()

        def check(broker, producer, topic, consumer):
            producer.send(Message(topic, b"one"))
            assert [each.body for each in broker.expect(topic)] == [b"one"]
            consumer(topic)
            seen.add((id(broker), topic))

        def test_first(troupemq_broker, producer, troupemq_topic, consumer):
            check(troupemq_broker, producer, troupemq_topic, consumer)

        def test_second(troupemq_broker, producer, troupemq_topic, consumer):
            check(troupemq_broker, producer, troupemq_topic, consumer)
            assert len(seen) == 2 and len({broker for broker, _ in seen}) == 1
        """
    )
    pytester.runpytest_inprocess(*HERE).assert_outcomes(passed=2)


def test_coroutines_get_clients_that_they_start(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio
        from troupemq import Message

        def test_it(troupemq_topic, aio_producer, aio_consumer):
            async def main():
                async with aio_producer as producer, aio_consumer as consumer:
                    await consumer.subscribe(troupemq_topic)
                    await producer.send(Message(troupemq_topic, b"one"))
                    async for delivery in consumer:
                        async with delivery:
                            return delivery.message.body
            assert asyncio.run(main()) == b"one"
        """
    )
    pytester.runpytest_inprocess(*HERE).assert_outcomes(passed=1)


def test_broker_of_a_test_and_of_the_session_serve_beside_each_other(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest
        from troupemq import Message
        seen = []

        @pytest.mark.parametrize("number", range(2))
        def test_it(number, troupemq_broker, troupemq_session_broker, producer):
            producer.send(Message("Orders", b"one"))
            assert len(troupemq_broker.messages("Orders")) == 1
            assert troupemq_session_broker.messages("Orders") == []
            seen.append((troupemq_broker, troupemq_session_broker))
            assert len({one for one, _ in seen}) == len(seen)
            assert len({other for _, other in seen}) == 1
        """
    )
    pytester.runpytest_inprocess(*HERE).assert_outcomes(passed=2)


def test_unknown_scope_is_refused_with_a_sentence(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntroupemq_scope = module")
    pytester.makepyfile("def test_it(troupemq_broker): ...")
    result = pytester.runpytest_inprocess(*HERE)
    result.stderr.fnmatch_lines(["*troupemq_scope is 'module': use function or session*"])


def test_mark_with_unknown_arguments_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.troupemq({"Orders": 1}, {"brokerName": "b"})
        def test_good(troupemq_broker):
            (queue,) = troupemq_broker.queues("Orders")
            assert queue.broker_name == "b"

        @pytest.mark.troupemq(setting={"brokerName": "b"})
        def test_bad(troupemq_broker): ...
        """
    )
    result = pytester.runpytest_inprocess(*HERE)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*unexpected keyword argument 'setting'*"])


def test_mark_is_refused_where_one_broker_serves_the_session(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntroupemq_scope = session")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.troupemq(settings={"flushDiskType": "SYNC_FLUSH"})
        def test_it(troupemq_broker): ...
        """
    )
    result = pytester.runpytest_inprocess(*HERE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it has the mark troupemq*troupemq_scope is session*"])


@pytest.mark.slow
def test_unused_fixtures_import_nothing() -> None:
    program = "import sys, troupemq.pytest_plugin; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ours = {"protocol", "storage", "actors", "remoting", "structlog", "pykka"}
    assert ours.isdisjoint(each.partition(".")[0] for each in ran.stdout.split())
    assert "troupemq.testing" not in ran.stdout
