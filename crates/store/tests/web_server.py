#!/usr/bin/env python3
"""A web server of the files in a folder, for tests: single ranges, and TLS when there is a certificate.

    python3 crates/store/tests/web_server.py DIR [--port N] [--certificate PEM] [--tag] [--without-ranges]

Writes its port as a line, and ends when its standard input is closed. With --tag it gives ETags; without, only times.
"""
import argparse
import http.server
import os
import re
import ssl
import sys
import threading
from urllib.parse import unquote, urlsplit


class Files(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, with_body):
        path = os.path.normpath(os.path.join(options.folder, unquote(urlsplit(self.path).path).lstrip("/")))
        try:
            file = open(path, "rb")
        except OSError:
            self.send_error(404)
            return
        with file:
            known = os.fstat(file.fileno())
            start, end, status = 0, known.st_size, 200
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if asked and not options.without_ranges:
                start, end, status = int(asked[1]), min(int(asked[2]) + 1, known.st_size), 206
                if start >= known.st_size:
                    self.send_error(416)
                    return
            tag = f'"{known.st_mtime_ns:x}-{known.st_size:x}"'
            if options.tag and self.headers.get("If-Match", tag) != tag:
                self.send_error(412)
                return
            self.send_response(status)
            self.send_header("Content-Length", str(end - start))
            self.send_header("Last-Modified", self.date_time_string(known.st_mtime))
            if options.tag:
                self.send_header("ETag", tag)
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{known.st_size}")
            self.end_headers()
            if with_body:
                file.seek(start)
                left = end - start
                while left > 0:
                    piece = file.read(min(left, 1 << 16))
                    self.wfile.write(piece)
                    left -= len(piece)

    def do_GET(self):
        self.answer(True)

    def do_HEAD(self):
        self.answer(False)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        pass


parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--certificate")
parser.add_argument("--tag", action="store_true")
parser.add_argument("--without-ranges", action="store_true")
options = parser.parse_args()
server = Server(("127.0.0.1", options.port), Files)
if options.certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
