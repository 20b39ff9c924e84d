"""`confine`: runs a program where nothing but loopback is reachable, so that an agent that would call its maker cannot."""

import fcntl
import os
import socket
import struct
import subprocess
import sys

MARK = "TOKENMILL_CONFINED"
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def confine():
    """Starts this program again in a network of its own. Where the system lets nobody make one, says so and goes on."""
    if MARK in os.environ:
        start_loopback()
        return
    command = ["unshare", "--user", "--map-root-user", "--net"]
    try:
        can = subprocess.run([*command, "true"], stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        can = False
    if not can:
        print("not confined: this system lets nobody make a network of their own; only the agents' own switches keep them quiet", flush=True)
        return
    os.environ[MARK] = "1"
    os.execvp(command[0], [*command, sys.executable, *sys.argv])


def start_loopback():
    """Sets the loopback device of a new network up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack_from("16xH", fcntl.ioctl(control, SIOCGIFFLAGS, asked))[0]
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
