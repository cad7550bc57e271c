"""Who may use the explorer: its own page alone, by a name of this server, and off loopback with the token.

The token is in the address that is printed. Who shows it gets a cookie, which stands for it from then on and tells the
visitors of one address apart.
"""

import hmac
import re
import secrets
import socket
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ..settings import LOOPBACK, Exploring
from .picture_store import Visitor

WILDCARDS = ("0.0.0.0", "::")

# The page sends this header with every question. Another site's page cannot send it without a preflight request
# (CORS), which no route here answers.
PAGE_HEADER = "x-opencrate"
FOREIGN_HOST = (
    "The explorer does not know this host name: open the address that it printed, or add the name by --names."
)
FOREIGN_PAGE = "Only the explorer's own page may ask."
NO_TOKEN = "This address lacks its token: open the complete address that opencrate explore printed in the terminal."


@dataclass(frozen=True)
class Access:
    """The rules of one server; `names` are its host names, as in an address."""

    port: int
    names: frozenset[str]
    needs_token: bool
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def refusal(self, scope: Scope) -> str | None:
        """Why a request is refused; otherwise None, and `visitor` and `cookie` are in the scope's state."""
        request = HTTPConnection(scope)
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        name = re.sub(r":\d{1,5}$", "", host)  # a forwarded port may be any; an address in brackets keeps its colons
        # The name is compared against DNS rebinding: another site's name that leads to this machine. Nobody can
        # make the address at which a connection arrived such a name.
        if name not in self.names and name != in_address((scope.get("server") or ("",))[0]):
            return FOREIGN_HOST
        if any(origin not in (f"http://{host}", f"https://{host}") for origin in origins):
            return FOREIGN_PAGE
        session, cookie = self._session(request), None
        if session is None:
            shown = request.query_params.getlist("token")
            has_token = len(shown) == 1 and hmac.compare_digest(shown[0].encode(), self.token.encode())
            if self.needs_token and not has_token:
                return NO_TOKEN
            if has_token or scope["path"] == "/":
                session = secrets.token_urlsafe(8)
                cookie = f"{self._cookie}={session}.{self._signature(session)}; Path=/; HttpOnly; SameSite=Strict"
        if scope["method"] == "POST" and PAGE_HEADER not in request.headers:
            return FOREIGN_PAGE
        visitor: Visitor = (scope["client"][0] if scope.get("client") else "", session or "")
        scope.setdefault("state", {}).update(visitor=visitor, cookie=cookie)
        return None

    @property
    def _cookie(self) -> str:
        return f"opencrate-{self.port}"  # browsers do not tell the ports of one host apart

    def _signature(self, session: str) -> str:
        return hmac.digest(self.token.encode(), session.encode(), "sha256").hex()

    def _session(self, request: HTTPConnection) -> str | None:
        session, _, signature = request.cookies.get(self._cookie, "").partition(".")
        known = hmac.compare_digest(signature.encode(), self._signature(session).encode())
        return session if known else None


def access_at(settings: Exploring, port: int) -> Access:
    """The rules of a server that listens there."""
    host = settings.host
    own = set() if host in LOOPBACK else {socket.gethostname(), socket.getfqdn()}.difference(LOOPBACK)
    loopback = LOOPBACK if host in (*LOOPBACK, *WILDCARDS) else ()
    names = frozenset(in_address(name).lower() for name in (host, *loopback, *own, *settings.names))
    return Access(port, names, needs_token=not settings.is_local)


def in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
