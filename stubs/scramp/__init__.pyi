from collections.abc import Sequence

class ScramException(Exception):
    server_error: str | None

class ScramClient:
    mechanism_name: str
    def __init__(
        self,
        mechanisms: Sequence[str],
        username: str,
        password: str,
        channel_binding: tuple[str, bytes] | None = ...,
        c_nonce: str | None = ...,
    ) -> None: ...
    def get_client_first(self) -> str: ...
    def set_server_first(self, message: str) -> None: ...
    def get_client_final(self) -> str: ...
    def set_server_final(self, message: str) -> None: ...

def make_channel_binding(name: str, ssl_socket: object) -> tuple[str, bytes]: ...
