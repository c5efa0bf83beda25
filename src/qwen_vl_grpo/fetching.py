"""A picture or a clip from wherever a person names it: a file, an http(s) address or a data: URL, with no way into the network behind.

The address of a URL is looked up once, judged, and connected to as it is, so a name that answers differently the second time
(DNS rebinding) leads nowhere. Every redirect is judged anew. Proxies of the environment are not used.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import http.client
import io
import ipaddress
import socket
import ssl
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from PIL import Image

from qwen_vl_grpo import __version__, footage
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.tasks.visual_reasoning import open_picture
from qwen_vl_grpo.video_records import VideoFile

MAX_BYTES = 64 * 2**20
MAX_PIXELS = 64 * 10**6
"""A picture's header is believed before a single pixel is decoded; Pillow alone warns at 89 million and stops at 179."""
MAX_SECONDS = 30.0
MAX_CLIP_BYTES = 256 * 2**20
MAX_CLIP_SECONDS = 120.0
MAX_REDIRECTS = 5
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""Formats that are decoded in this process; Pillow would hand EPS to Ghostscript."""
CLIP_FORMATS = "mov,mp4,matroska,webm,avi,mpegts,mpeg,ogg,flv,asf"
"""Containers of clips that come from elsewhere; FFmpeg would open what a playlist names, on this machine or another."""
METADATA = frozenset({"168.63.129.16", "192.0.0.192"})
"""Metadata services of clouds at addresses that look public (Azure, Oracle); the others are link-local or private."""
CARRYING = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
"""IPv6 networks whose last 32 bits are an IPv4 address: NAT64, and a form that is no longer used."""


@dataclass(frozen=True)
class Picture:
    image: Image.Image
    """RGB, upright, its first frame."""
    sha256: str
    """Of the file as it came."""


def picture(source: str, folder: Path = Path(), allow_private: bool = False) -> Picture:
    """Open what `source` names; a path is taken from `folder`. Raises DataError that begins with the source."""
    try:
        content = _content(source, folder, allow_private)
        _check_header(content)
        return Picture(open_picture({"bytes": content}), hashlib.sha256(content).hexdigest())
    except DataError as error:
        raise DataError(f"{shown(source)}: {error}") from None


def clip(source: str, folder: Path = Path(), allow_private: bool = False) -> VideoFile:
    """The clip that `source` names, seen to be one; a path is taken from `folder`. Raises DataError that names the source."""
    if not is_url(source) and "://" not in source:
        return VideoFile(str(folder / source), footage=footage.probe(folder / source))
    try:
        return clip_of(_content(source, folder, allow_private, MAX_CLIP_BYTES, MAX_CLIP_SECONDS))
    except DataError as error:
        raise DataError(f"{shown(source)}: {error}") from None


def clip_of(content: bytes) -> VideoFile:
    """A clip as a file that goes when nobody holds the clip any more, and of which nothing is remembered."""
    file = tempfile.NamedTemporaryFile(prefix="clip-")  # noqa: SIM115 - whoever holds the clip closes it
    file.write(content)
    file.flush()
    try:
        return VideoFile(file.name, footage=footage.looked(Path(file.name), CLIP_FORMATS), held=file)
    except DataError as error:
        raise DataError(str(error).replace(f"video {file.name}: ", "")) from None


def is_url(source: str) -> bool:
    return source.lower().startswith(("http://", "https://", "data:"))


def shown(source: str) -> str:
    """A source as it may be printed and kept: signed URLs carry secrets behind the question mark, data: URLs whole pictures."""
    if source.lower().startswith("data:"):
        return f"{source[:40].partition(',')[0]},… ({len(source)} characters)"
    if not is_url(source):
        return source
    try:
        parts = urlsplit(source)
    except ValueError:
        return source.partition("?")[0]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" + "?…" * bool(parts.query)


def fetch(url: str, allow_private: bool = False, seconds: float = MAX_SECONDS, most: int = MAX_BYTES) -> bytes:
    """The bytes behind an http(s) URL; raises DataError for addresses that are not public, and past the caps on size, time and hops."""
    deadline = time.monotonic() + seconds
    for _ in range(MAX_REDIRECTS + 1):
        status, location, content = _get(_parts(url), allow_private, deadline, most)
        if status in (301, 302, 303, 307, 308) and location:
            url = urljoin(url, location)
        elif status == 200:
            return content
        else:
            raise DataError(f"the server answers {status} {http.client.responses.get(status, '')}".rstrip())
    raise DataError(f"is redirected more than {MAX_REDIRECTS} times")


def addresses(host: str, port: int, allow_private: bool) -> list[str]:
    """The addresses of a host; raises DataError if one of them is not public, since the next look-up might give it first."""
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        raise DataError(f"its host {host} is not found ({error})") from None
    for address in found:
        if not allow_private and not public(address):
            raise DataError(f"its host {host} is at {address}, which is not public; --allow_private_urls lets it in")
    return found


def public(address: str) -> bool:
    """Whether an address lies in the open internet, also when an IPv6 address carries the IPv4 address that is meant."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped:
            return public(str(ip.ipv4_mapped))
        carried = [ip.sixtofour, *(ip.teredo or ()), *(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) for net in CARRYING if ip in net)]
        if ip.is_site_local or not all(public(str(inner)) for inner in carried if inner):
            return False
    return ip.is_global and not ip.is_multicast and str(ip) not in METADATA


def _content(source: str, folder: Path, allow_private: bool, most: int = MAX_BYTES, seconds: float = MAX_SECONDS) -> bytes:
    if source.lower().startswith("data:"):
        head, _, body = source.partition(",")
        try:
            if not head.endswith(";base64"):
                raise ValueError("it is not base64")
            return base64.b64decode(body, validate=True)
        except (ValueError, binascii.Error) as error:
            raise DataError(f"is a data: URL that cannot be read ({error})") from None
    if is_url(source):
        return fetch(source, allow_private, seconds, most)
    if "://" in source:
        raise DataError("only http, https and data: URLs, and paths, are read")
    path = folder / source
    try:
        if not path.is_file():
            raise DataError("there is no such file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read ({error})") from None
    if len(content) > MAX_BYTES:
        raise DataError(f"is larger than {MAX_BYTES // 2**20} MiB")
    return content


def _check_header(content: bytes) -> None:
    """Refuse what is no picture, and a picture that would fill the memory, by its first bytes."""
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(f"a picture of more than {MAX_PIXELS // 10**6} million pixels; make it smaller") from None
    except (OSError, ValueError, SyntaxError):
        kind = "an HTML page and no picture" if content[:512].lstrip().lower().startswith((b"<!doctype html", b"<html")) else "no picture"
        raise DataError(f"is {kind} that could be opened ({', '.join(FORMATS)} can)") from None
    if width * height > MAX_PIXELS:
        raise DataError(f"a picture of {width}x{height} has more than {MAX_PIXELS // 10**6} million pixels; make it smaller")


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError
    except ValueError:
        raise DataError(f"{shown(url)[:80]} is no http or https address") from None
    if parts.username or parts.password:
        raise DataError("carries a user name or password; leave them out")
    return parts


def _get(parts: SplitResult, allow_private: bool, deadline: float, most: int) -> tuple[int, str | None, bytes]:
    """One request: status, where it is redirected to, and the body; a timer cuts the line, as a server may drip for ever."""
    assert parts.hostname
    port = parts.port or (443 if parts.scheme == "https" else 80)
    line = _connect(addresses(parts.hostname, port, allow_private), port, deadline)
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), _cut, [line])
    timer.daemon = True
    try:
        if parts.scheme == "https":
            line = ssl.create_default_context().wrap_socket(line, server_hostname=parts.hostname, do_handshake_on_connect=False)
            timer.args = [line]
        timer.start()
        if isinstance(line, ssl.SSLSocket):
            line.do_handshake()
        answer = _ask(line, parts, most)
        if time.monotonic() >= deadline:  # what came of a body without a length may be half of it
            raise OSError
        return answer
    except (OSError, http.client.HTTPException, ValueError) as error:
        if time.monotonic() >= deadline:
            raise DataError("is not there in time; try again, or download it first") from None
        raise DataError(f"cannot be fetched ({type(error).__name__}: {' '.join(str(error).split())[:120]})") from None
    finally:
        timer.cancel()
        line.close()


def _connect(found: list[str], port: int, deadline: float) -> socket.socket:
    failed = "it has no address"
    for address in found:
        try:
            return socket.create_connection((address, port), timeout=max(0.01, deadline - time.monotonic()))
        except OSError as error:
            failed = str(error)
    raise DataError(f"no connection to its host ({failed})")


def _cut(line: socket.socket) -> None:
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:
        line.close()


def _ask(line: socket.socket, parts: SplitResult, most: int) -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection(parts.netloc)
    connection.sock = line
    headers = {
        "Host": parts.netloc,
        "User-Agent": f"qwen-vl-grpo/{__version__}",
        "Accept": "image/*, video/*",
        "Accept-Encoding": "identity",
    }
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection.request("GET", quote(target, safe="/%?&=+$,;:@~!*'()[]"), headers=headers)
    answer = connection.getresponse()
    if answer.status != 200:
        return answer.status, answer.getheader("Location"), b""
    if answer.getheader("Content-Encoding", "identity") != "identity":
        raise ValueError(f"the server packs it ({answer.getheader('Content-Encoding')}) though it was asked not to")
    length = int(answer.getheader("Content-Length") or 0)
    content = b"" if length > most else answer.read(most + 1)
    if max(length, len(content)) > most:
        raise DataError(f"is larger than {most // 2**20} MiB")
    if len(content) < length:
        raise OSError(f"only {len(content)} bytes came")
    return 200, None, content
