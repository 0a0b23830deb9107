#!/usr/bin/env python3
"""An S3 server (moto) and an Azure Blob server (Azurite) for tests, with a bucket and a container.

    python3 crates/store/tests/servers.py DIR
    python3 crates/store/tests/servers.py --container http://127.0.0.1:PORT

Installs both into DIR, once (a Python environment and a folder of npm), starts them on free ports of 127.0.0.1, and writes the
variables that the tests want, as NAME=VALUE lines, then an empty line. Runs until its standard input is closed. Tests start
more of them by themselves, such as are killed or have certificates; --container makes the container in such an Azurite.

The S3 server checks keys and signatures. Nothing is kept on disk. A third server only shows a certificate that nobody trusts.
Exit code 3: nothing can be fetched.
"""
import base64
import datetime
import hashlib
import hmac
import http.server
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

UNREACHABLE = 3
PIP = ["moto[server]==5.2.5", "cryptography>=43"]
NPM = "azurite@3.35.0"
NAME = "ronde-test"
ACCOUNT = "devstoreaccount1"
# Azurite's key, which is public.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
# Requests that are not checked yet: those that make the user, its rights, its key and the bucket.
UNCHECKED = 4
STARTS_MAX_S = 60


def quietly(*command, cwd=None):
    """Runs an installer; its output is shown when it fails."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        words = ("Temporary failure in name resolution", "Network is unreachable", "EAI_AGAIN", "ENOTFOUND", "ENETUNREACH",
                 "Could not find a version")
        sys.exit(UNREACHABLE if any(word in done.stdout for word in words) else 1)


def install(folder):
    """Both at once: they mostly wait for the network."""
    if not shutil.which("npm"):
        sys.exit("npm is not installed: the tests of Azure Blob Storage need it")
    os.makedirs(folder, exist_ok=True)
    azurite = os.path.join(folder, "azurite")
    npm = None
    if not os.path.exists(os.path.join(azurite, "complete")):
        shutil.rmtree(azurite, ignore_errors=True)
        os.makedirs(azurite)
        npm = threading.Thread(target=lambda: outcome.append(install_azurite(azurite)))
        outcome = []
        npm.start()
    moto = os.path.join(folder, "moto")
    if not os.path.exists(os.path.join(moto, "complete")):
        shutil.rmtree(moto, ignore_errors=True)
        quietly(sys.executable, "-m", "venv", moto)
        quietly(os.path.join(moto, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check", *PIP)
        open(os.path.join(moto, "complete"), "w").close()
    if npm:
        npm.join()
        if not outcome:
            sys.exit(1)


def install_azurite(folder):
    quietly("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", folder, NPM)
    open(os.path.join(folder, "complete"), "w").close()
    return True


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until_it_listens(port, server):
    end = time.monotonic() + STARTS_MAX_S
    while time.monotonic() < end and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit(f"{server.args[0]} does not listen (exit code {server.poll()})")


def start(port, command, **variables):
    return subprocess.Popen(command, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def prepare_s3(endpoint):
    """A user that may do everything in S3, and a bucket; the user's key."""
    import boto3
    common = {"endpoint_url": endpoint, "region_name": "us-east-1", "aws_access_key_id": "first", "aws_secret_access_key": "first"}
    iam = boto3.client("iam", **common)
    iam.create_user(UserName=NAME)
    rights = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
    iam.put_user_policy(UserName=NAME, PolicyName="all", PolicyDocument=rights)
    key = iam.create_access_key(UserName=NAME)["AccessKey"]
    boto3.client("s3", **common).create_bucket(Bucket=NAME)
    return key["AccessKeyId"], key["SecretAccessKey"]


def prepare_azure(endpoint):
    """A container, by a request that is signed with the account's key."""
    headers = {"x-ms-date": datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT"),
               "x-ms-version": "2021-08-06"}
    shown = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    text = "PUT" + "\n" * 12 + shown + f"/{ACCOUNT}/{ACCOUNT}/{NAME}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
    request = urllib.request.Request(f"{endpoint}/{ACCOUNT}/{NAME}?restype=container", method="PUT", headers=headers)
    try:
        urllib.request.urlopen(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        sys.exit(f"no container: {error}: {error.read().decode()}")


def serve_untrusted(folder):
    """HTTPS with a certificate that nobody has signed but itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID
    import ipaddress
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nobody")])
    now = datetime.datetime.now(datetime.timezone.utc)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=2))
    made = made.add_extension(names, critical=False).sign(key, hashes.SHA256())
    path = os.path.join(folder, f"untrusted-{os.getpid()}.pem")
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        file.write(made.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    os.remove(path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.handle_error = lambda *_: None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def main():
    if sys.argv[1] == "--container":
        return prepare_azure(sys.argv[2])
    folder = os.path.abspath(sys.argv[1])
    inside = os.path.join(folder, "moto", "bin", "python3")
    if "--installed" not in sys.argv:
        install(folder)
        os.execv(inside, [inside, os.path.abspath(__file__), folder, "--installed"])
    s3, azure = free_port(), free_port()
    azurite = os.path.join(folder, "azurite", "node_modules", ".bin", "azurite-blob")
    servers = [
        start(s3, [inside, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(s3)], INITIAL_NO_AUTH_ACTION_COUNT=str(UNCHECKED)),
        start(azure, [azurite, "--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence",
                      "--blobHost", "127.0.0.1", "--blobPort", str(azure)]),
    ]
    try:
        until_it_listens(s3, servers[0])
        until_it_listens(azure, servers[1])
        user, secret = prepare_s3(f"http://127.0.0.1:{s3}")
        prepare_azure(f"http://127.0.0.1:{azure}")
        print(f"RONDE_TEST_S3=http://127.0.0.1:{s3}")
        print(f"RONDE_TEST_S3_KEY={user}:{secret}")
        print(f"RONDE_TEST_AZURE=http://127.0.0.1:{azure}")
        print(f"RONDE_TEST_AZURITE={azurite}")
        print(f"RONDE_TEST_MOTO={inside}")
        print(f"RONDE_TEST_UNTRUSTED=https://127.0.0.1:{serve_untrusted(folder)}")
        print(flush=True)
        sys.stdin.read()
    finally:
        for server in servers:
            server.terminate()


main()
