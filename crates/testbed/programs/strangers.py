#!/usr/bin/env python3
"""Speaks with Dazzle's daemons as no Dazzle does: docs/format-network.md, over real sockets.

    strangers.py serve ADDRESS MANNER [DIR]     listens on ADDRESS (host:port) until it is killed; prints a line when it does
    strangers.py say ADDRESS DIR MANNER         calls the daemon at ADDRESS once, and prints what it answers

DIR is a node's directory: its certificate and key are borrowed. MANNER is

    silent          takes connections, and says nothing (serve)
    web             speaks HTTP (serve)
    hello:VERSION   greets as a node that speaks this version of the network alone
    join:VERSION    asks to join, or answers who does, in this version of joining
"""
import socket
import ssl
import sys

HELLO_BYTES, VERDICTS = 32, ["welcome", "no version in common", "the number is in use elsewhere"]
# Longer than anybody waits.
PATIENCE = 60


def place(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


def tls(role, directory, purpose):
    """TLS with the certificate of the node in a directory; whoever answers is believed."""
    context = ssl.SSLContext(role)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    chain = f"{directory}/trust/node.pem"
    if role == ssl.PROTOCOL_TLS_SERVER and purpose == "dazzle":
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(f"{directory}/trust/ca.pem")
    if purpose == "dazzle-join" and role == ssl.PROTOCOL_TLS_SERVER:
        # Who joins knows the CA by its fingerprint alone, and is shown it.
        both = f"{directory}/trust/stranger.pem"
        with open(both, "w", encoding="ascii") as out:
            for name in ("node.pem", "ca.pem"):
                with open(f"{directory}/trust/{name}", encoding="ascii") as part:
                    out.write(part.read())
        chain = both
    context.load_cert_chain(chain, f"{directory}/trust/node.key")
    context.set_alpn_protocols([purpose])
    return context


def hello(version, verdict=0):
    words = b"DZNET\0\0\0" + version.to_bytes(2, "little") * 2 + bytes([verdict, 0, 0, 0])
    return words + (77).to_bytes(8, "little") + bytes(8)


def join_words(version):
    """A message that only this version understands."""
    return (3).to_bytes(4, "little") + version.to_bytes(2, "little") + b"???"


def read(stream, count):
    data = b""
    while len(data) < count:
        part = stream.recv(count - len(data))
        if not part:
            raise SystemExit(f"the daemon hung up after {len(data)} bytes")
        data += part
    return data


def serve(address, manner, directory=None):
    kind, _, version = manner.partition(":")
    listener = socket.create_server(place(address))
    print("listens", flush=True)
    held = []
    while True:
        stream, _ = listener.accept()
        if kind == "silent":
            held.append(stream)
        elif kind == "web":
            stream.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            held.append(stream)
        else:
            purpose = "dazzle" if kind == "hello" else "dazzle-join"
            try:
                with tls(ssl.PROTOCOL_TLS_SERVER, directory, purpose).wrap_socket(stream, server_side=True) as secured:
                    words = hello(int(version), 1) if kind == "hello" else join_words(int(version))
                    secured.sendall(words)
                    # Who is answered closes.
                    while secured.recv(4096):
                        pass
            except OSError as error:
                print(error, flush=True)


def say(address, directory, manner):
    kind, _, version = manner.partition(":")
    purpose = "dazzle" if kind == "hello" else "dazzle-join"
    with socket.create_connection(place(address), timeout=PATIENCE) as stream:
        with tls(ssl.PROTOCOL_TLS_CLIENT, directory, purpose).wrap_socket(stream) as secured:
            if kind == "hello":
                secured.sendall(hello(int(version)))
                answer = read(secured, HELLO_BYTES)
                lowest, highest = (int.from_bytes(answer[at:at + 2], "little") for at in (8, 10))
                print(f"versions {lowest} to {highest}: {VERDICTS[answer[12]]}")
            else:
                secured.sendall(join_words(int(version)))
                answer = read(secured, 6)
                body = read(secured, int.from_bytes(answer[:4], "little"))
                print(f"version {int.from_bytes(answer[4:], 'little')}: {'refused' if body[0] == 1 else 'let in'}")


def main():
    if sys.argv[1:2] == ["serve"] and len(sys.argv) in (4, 5):
        serve(*sys.argv[2:])
    elif sys.argv[1:2] == ["say"] and len(sys.argv) == 5:
        say(*sys.argv[2:])
    else:
        sys.exit(__doc__)


main()
