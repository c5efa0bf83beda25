"""Covers pictures from files, URLs and data: URLs: what is let in, and one sentence for each that is not."""

import base64
import io
import os
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

from demo import clips
from qwen_vl_grpo import fetching
from qwen_vl_grpo.errors import DataError


def encoded(form="PNG", mode="RGB", size=(30, 20), **options):
    file = io.BytesIO()
    Image.new(mode, size, 0 if mode.startswith("I") else "red").save(file, form, **options)
    return file.getvalue()


def huge_png(width=50_000, height=50_000):
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(b"0"))
    )


class Pages(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        path, _, rest = self.path.partition("?")
        body, headers, status = encoded(), {}, 200
        if path == "/to":
            status, headers, body = 302, {"Location": rest}, b""
        elif path == "/loop":
            status, headers, body = 302, {"Location": "/loop"}, b""
        elif path == "/clip.mp4":
            body = self.server.clip
        elif path == "/html":
            body = b"<!DOCTYPE html><html>Please log in</html>"
        elif path == "/missing":
            status = 404
        elif path == "/said-large":
            headers = {"Content-Length": str(10**12)}
        elif path == "/half":
            headers = {"Content-Length": str(len(body) + 100)}
        elif path == "/packed":
            headers = {"Content-Encoding": "gzip"}
        elif path == "/large":
            body = None
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            if path == "/drip":
                for byte in body:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(0.1)
            elif body is None:
                for _ in range(10**4):
                    self.wfile.write(bytes(2**20))
            else:
                self.wfile.write(body)
        except OSError:
            pass

    def log_message(self, *_):
        pass


@pytest.fixture
def site():
    """A real server on the loopback; its URL and what it was asked."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.asked = []
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def thought_public(monkeypatch):
    """Let the loopback's first address pass for one of the open internet; all others are judged as they are."""
    judged = fetching.public
    monkeypatch.setattr(fetching, "public", lambda address: address == "127.0.0.1" or judged(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "0.0.0.0",
        "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00:ec2::254", "fec0::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1", "192.0.0.192",
    ],
)  # fmt: skip
def test_an_address_of_the_network_behind_is_not_public(address):
    assert not fetching.public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_an_address_of_the_open_internet_is_public(address):
    assert fetching.public(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0"])
def test_a_private_host_is_refused_however_it_is_written_and_never_asked(site, host):
    with pytest.raises(DataError, match=r"not public|not found"):
        fetching.picture(f"http://{host}:{site.server_port}/picture.png")
    assert site.asked == []


def test_a_private_host_is_let_in_by_those_who_mean_it(site):
    found = fetching.picture(f"{site.url}/picture.png?key=1", allow_private=True)
    assert (found.image.size, found.image.mode, len(found.sha256)) == ((30, 20), "RGB", 64)
    assert site.asked == ["/picture.png?key=1"]


@pytest.mark.parametrize("target", ["http://127.0.0.2:{port}/", "http://169.254.169.254/latest/meta-data/", "//[::1]:{port}/x"])
def test_a_redirect_inside_is_refused(site, thought_public, target):
    with pytest.raises(DataError, match="is not public"):
        fetching.picture(f"{site.url}/to?{target.format(port=site.server_port)}")
    assert len(site.asked) == 1


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x"])
def test_a_redirect_to_another_scheme_is_refused(site, thought_public, target):
    with pytest.raises(DataError, match="is no http or https address"):
        fetching.picture(f"{site.url}/to?{target}")


def test_redirects_are_followed_up_to_a_number(site, thought_public):
    assert fetching.picture(f"{site.url}/to?/picture.png").image.size == (30, 20)
    with pytest.raises(DataError, match="redirected more than 5 times"):
        fetching.picture(f"{site.url}/loop")


def test_a_name_is_looked_up_once_so_a_second_answer_leads_nowhere(site, monkeypatch):
    answers = iter(["127.0.0.1", "127.0.0.2"])
    monkeypatch.setattr(fetching, "public", lambda address: address == "127.0.0.1")
    real = socket.getaddrinfo

    def look_up(host, *arguments, **named):
        return real(next(answers) if host == "pictures.example" else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert fetching.picture(f"http://pictures.example:{site.server_port}/a.png").image.size == (30, 20)
    assert next(answers) == "127.0.0.2"


def test_one_private_address_among_public_ones_is_enough_to_refuse(monkeypatch):
    entries = [(2, 1, 6, "", ("8.8.8.8", 80)), (2, 1, 6, "", ("10.0.0.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    with pytest.raises(DataError, match=r"at 10\.0\.0\.1, which is not public"):
        fetching.picture("http://pictures.example/a.png")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/html", "is an HTML page and no picture"),
        ("/missing", "answers 404 Not Found"),
        ("/said-large", "larger than 64 MiB"),
        ("/large", "larger than 64 MiB"),
        ("/half", "cannot be fetched"),
        ("/packed", "packs it"),
    ],
)
def test_what_the_server_sends_instead_of_a_picture_is_said(site, path, said):
    with pytest.raises(DataError, match=said) as refused:
        fetching.picture(f"{site.url}{path}?token=secret", allow_private=True)
    assert "secret" not in str(refused.value)
    assert str(refused.value).startswith(f"{site.url}{path}?…: ")


def test_a_server_that_drips_is_cut_off(site):
    started = time.monotonic()
    with pytest.raises(DataError, match="not there in time"):
        fetching.fetch(f"{site.url}/drip", allow_private=True, seconds=0.5)
    assert time.monotonic() - started < 10


def test_a_server_that_says_nothing_is_cut_off():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for scheme in ("http", "https"):
            with pytest.raises(DataError, match="not there in time"):
                fetching.fetch(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/", allow_private=True, seconds=0.3)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_https_asks_for_a_certificate_of_that_host(site, tmp_path, monkeypatch):
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "certificate.pem")]
    named = ["-subj", "/CN=pictures", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *files, *named]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    site.socket = context.wrap_socket(site.socket, server_side=True)
    url = site.url.replace("http:", "https:")
    with pytest.raises(DataError, match="CERTIFICATE_VERIFY_FAILED"):
        fetching.picture(f"{url}/picture.png", allow_private=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    assert fetching.picture(f"{url}/picture.png", allow_private=True).image.size == (30, 20)
    with pytest.raises(DataError, match="CERTIFICATE_VERIFY_FAILED"):
        fetching.picture(f"{url.replace('127.0.0.1', 'localhost')}/picture.png", allow_private=True)


def test_a_clip_comes_from_where_pictures_do_and_goes_with_who_holds_it(site, tmp_path, own_home):
    clips.write(tmp_path / "clip.mp4", clips.counting(12), fps=8.0)
    site.clip = (tmp_path / "clip.mp4").read_bytes()
    sources = "clip.mp4", f"{site.url}/clip.mp4", "data:video/mp4;base64," + base64.b64encode(site.clip).decode()
    found = [fetching.clip(source, tmp_path, allow_private=True) for source in sources]
    assert [(clip.footage.frames, clip.footage.fps) for clip in found] == [(12, 8.0)] * 3
    assert found[0].path == str(tmp_path / "clip.mp4")
    passing = Path(found[1].path)
    assert passing.is_file()
    del found
    assert not passing.exists()
    assert len(list((own_home / "footage").iterdir())) == 1
    with pytest.raises(DataError, match="is not public"):
        fetching.clip(f"{site.url}/clip.mp4")


@pytest.mark.parametrize(
    ("path", "said"),
    [("/html", "is no video that can be read"), ("/said-large", "is larger than 256 MiB"), ("/missing", "answers 404")],
)
def test_what_comes_instead_of_a_clip_is_said(site, path, said):
    with pytest.raises(DataError, match=said) as refused:
        fetching.clip(f"{site.url}{path}?token=secret", allow_private=True)
    assert str(refused.value).startswith(f"{site.url}{path}?…: ")


def test_a_playlist_leads_nowhere(site, tmp_path):
    clips.write(tmp_path / "part.ts", clips.counting(12), fps=8.0)
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:1.5,\n{tmp_path}/part.ts\n#EXT-X-ENDLIST\n"
    (tmp_path / "own.m3u8").write_text(playlist)
    assert fetching.clip("own.m3u8", tmp_path).footage.frames == 12
    with pytest.raises(DataError, match="is no video that can be read"):
        fetching.clip("data:video/mp4;base64," + base64.b64encode(playlist.encode()).decode())


def rotated():
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded("JPEG", exif=exif)


def animated():
    frames = [Image.new("P", (30, 20), colour) for colour in (0, 1)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (encoded("JPEG", "CMYK"), (30, 20)),
        (encoded("PNG", "I;16"), (30, 20)),
        (encoded("PNG", size=(1, 1)), (1, 1)),
        (rotated(), (20, 30)),
        (animated(), (30, 20)),
    ],
    ids=["CMYK", "16 bit", "1x1", "rotated by EXIF", "animated"],
)
def test_a_strange_picture_becomes_an_upright_rgb_one(tmp_path, content, size):
    (tmp_path / "picture").write_bytes(content)
    found = fetching.picture("picture", tmp_path)
    assert (found.image.mode, found.image.size) == ("RGB", size)
    url = "data:image/x;base64," + base64.b64encode(content).decode()
    assert fetching.picture(url).sha256 == found.sha256


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (huge_png(), "a picture of (50000x50000 has )?more than 64 million pixels"),
        (huge_png(9_000, 9_000), "a picture of 9000x9000 has more than 64 million pixels"),
        (b"<html>no</html>", "is an HTML page and no picture"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "is no picture"),
        (b"", "is no picture"),
        (encoded()[:60], "cannot be opened"),
    ],
    ids=["bomb", "large", "HTML", "PostScript", "empty", "cut off"],
)
def test_a_file_that_is_no_picture_to_take_is_refused_by_its_name(tmp_path, content, said):
    (tmp_path / "picture").write_bytes(content)
    with pytest.raises(DataError, match=f"^picture: .*{said}"):
        fetching.picture("picture", tmp_path)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("gone.png", "there is no such file"),
        (".", "there is no such file"),
        (os.devnull, "there is no such file"),
        ("a\0b", "no such file|cannot be read"),
        ("ftp://example.com/a.png", "only http, https and data: URLs"),
        ("http://", "is no http or https address"),
        ("http://[::1", "is no http or https address"),
        ("http://user:secret@example.com/", "leave them out"),
        ("http://no-such-host.invalid/", "is not found"),
        ("data:image/png,abc", "data: URL that cannot be read"),
        ("data:image/png;base64,%%%", "data: URL that cannot be read"),
    ],
)
def test_a_source_that_leads_nowhere_is_said(tmp_path, source, said):
    with pytest.raises(DataError, match=said) as refused:
        fetching.picture(source, tmp_path)
    assert "secret" not in str(refused.value)
