"""RemotingCommand: the value that travels in a frame, request and response alike.

Source: remoting/protocol/RemotingCommand.java.
"""

from dataclasses import dataclass

from protocol.codes import VERSION, LanguageCode, SerializeType

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2


@dataclass(slots=True)
class RemotingCommand:
    """One request, one-way request or response.

    `fields` are the extFields: None leaves the key out of a JSON header, {} writes it empty.
    The requester chooses `opaque`; the response repeats it.
    """

    code: int
    fields: dict[str, str] | None = None
    body: bytes | memoryview | None = None
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: int = LanguageCode.PYTHON
    version: int = VERSION
    serialize_type: int = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    def answer(
        self,
        code: int = 0,
        fields: dict[str, str] | None = None,
        *,
        remark: str | None = None,
        body: bytes | memoryview | None = None,
    ) -> "RemotingCommand":
        """Return a response to this request, in its serialisation."""
        return RemotingCommand(
            code,
            fields,
            body,
            opaque=self.opaque,
            flag=RESPONSE_FLAG,
            remark=remark,
            serialize_type=self.serialize_type,
        )
