"""What the tests share that kill the daemon: the daemon, and the word for a broken promise."""

import json
import os
import re
import signal
import subprocess


class Broken(Exception):
    """The file system did not keep its word."""


class Daemon:
    """The daemon under test."""

    def __init__(self, dazzle, directory, mount):
        self.dazzle, self.directory, self.mount = dazzle, directory, mount

    def up(self):
        subprocess.run([self.dazzle, "up", self.directory], check=True, stdout=subprocess.DEVNULL)

    def process(self):
        with open(os.path.join(self.directory, "lock"), encoding="ascii") as lock:
            return int(lock.read())

    def processor_time(self):
        """What it has used, in ticks of the clock."""
        with open(f"/proc/{self.process()}/stat", encoding="ascii") as stat:
            times = stat.read().rsplit(")", 1)[1].split()
        return int(times[11]) + int(times[12])

    def kill(self):
        os.kill(self.process(), signal.SIGKILL)
        # The lock is free when the process has ended.
        subprocess.run(["flock", os.path.join(self.directory, "lock"), "true"], check=True)

    def restart_with(self, **sizes):
        """Starts it anew with settings that are sizes, in MiB."""
        self.kill()
        path = os.path.join(self.directory, "dazzle.toml")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for name, size in sizes.items():
            text, found = re.subn(rf"^{name} = .*$", f'{name} = "{size} MiB"', text, flags=re.MULTILINE)
            if found != 1:
                raise Broken(f"{path} has {name} {found} times")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        self.up()

    def check(self):
        done = subprocess.run([self.dazzle, "check", self.directory], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Broken(f"dazzle check: {done.stdout}{done.stderr}")

    def status(self):
        done = subprocess.run([self.dazzle, "status", "--json", self.directory], capture_output=True, check=True)
        return json.loads(done.stdout)
