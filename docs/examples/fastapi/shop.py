"""Orders over HTTP: a producer and a consumer of TroupeMQ in the event loop of FastAPI."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from pydantic import BaseModel

from troupemq import ConsumeFrom, Message, MessageView, aio


class Order(BaseModel):
    number: str
    cents: int


def shop(namesrv: str) -> FastAPI:
    """Return the application. Its clients connect when it starts, and stop with it."""
    producer = aio.Producer("shop", namesrv)
    shipped: list[str] = []

    async def ship(messages: Sequence[MessageView]) -> None:
        for message in messages:
            order = Order.model_validate_json(message.body)
            if order.cents < 0:
                raise ValueError(f"order {order.number} costs {order.cents}")
            shipped.append(order.number)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        consumer = aio.PushConsumer("shipping", ship, namesrv, begin=ConsumeFrom.FIRST_OFFSET)
        await consumer.subscribe("Orders")
        async with producer, consumer:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=202)
    async def place(order: Order) -> dict[str, str]:
        body = order.model_dump_json().encode()
        result = await producer.send(Message("Orders", body, keys=order.number))
        return {"message_id": result.message_id}

    @app.get("/shipped")
    async def list_shipped() -> list[str]:
        return shipped

    return app


app = shop(os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
"""Application for `uvicorn shop:app`."""
