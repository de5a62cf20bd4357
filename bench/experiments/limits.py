"""What links and redundancy allow at most. Pure.

There are N hosts, each with one target and one link that carries L bytes a second in either direction. A stripe has k data
fragments and m parity fragments, w = k + m in all, on w different hosts; which these are, and which of them has parity, goes
round, so that each host has 1/N of all fragments, of all data fragments, and of those of any one client. What a client
stores on its own host's target, or reads from there, crosses no link. Every client does the same, so that into each host
comes as much as goes out of it: both directions are equally tight. Headers of packets, names and journals are not counted:
the first alone take 4.4 % of an Ethernet link (1,448 of 1,514 bytes are the program's).

>>> wide = Shape(hosts=4, data=3, parity=1)
>>> round(write(wide, 12.5e6) / 1e6, 2), round(read(wide, 12.5e6) / 1e6, 2)
(50.0, 75.0)
>>> round(read_without_one(wide, 12.5e6) / 1e6, 3), rebuild(wide, 12.5e6)
(56.25, None)
>>> some = Shape(hosts=8, data=4, parity=1)
>>> round(read(some, 12.5e6) / 1e6, 2), round(read_without_one(some, 12.5e6) / 1e6, 2)
(118.52, 103.7)
>>> round(write(some, 12.5e6) / 1e6, 2), round(rebuild(some, 12.5e6) / 1e6, 2), round(rebuild_by_one(some, 12.5e6) / 1e6, 2)
(91.43, 21.88, 2.92)
>>> write(Shape(hosts=1, data=1, parity=0), 12.5e6) is None
True
>>> read(Shape(hosts=2, data=1, parity=1), 12.5e6) is None
True
>>> read_without_one(Shape(hosts=1, data=1, parity=0), 12.5e6) is None
True
>>> round(read(Shape(hosts=8, data=1, parity=0), 12.5e6) / 1e6, 2)
114.29
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """How stripes lie over hosts."""

    hosts: int
    data: int
    parity: int

    @property
    def width(self):
        return self.data + self.parity


WRITE = "N L / ((w/k) (1 - 1/N))"
READ = "N L / (1 - w/(k N))"
READ_WITHOUT_ONE = "(N-1) L / (1 - w/(k N))"
REBUILD = "(N-1) L / k"
REBUILD_BY_ONE = "L / (w (1 - 1/(N-1)))"


def write(shape, link):
    """Bytes a second that all clients write together. Each byte becomes w/k, of which 1/N stays on its host."""
    return rate(shape.hosts, link, shape.width / shape.data * (1 - 1 / shape.hosts))


def read(shape, link):
    """Bytes a second that all clients read together: any k fragments of a stripe give its data. With probability w/N one of
    them, data or parity, lies on the reader's own host, and k - 1 are fetched."""
    return rate(shape.hosts, link, fetched(shape))


def read_without_one(shape, link):
    """Bytes a second that the clients of all hosts but a dead one read together, where a parity takes the place of what is
    lost. Of the stripes over the dead host, w/N of all, the reader's own has one of the other fragments with probability
    (w-1)/(N-1), of the rest with w/(N-1): w/N in all, as before."""
    return rate(shape.hosts - 1, link, fetched(shape))


def fetched(shape):
    """Which part of what is read crosses links."""
    return 1 - shape.width / (shape.data * shape.hosts)


def rebuild(shape, link):
    """Bytes a second of a lost target that all others make again together, where a stripe leaves hosts free: each lost
    fragment is made by a host that has none of its stripe, out of k fragments, and stays there."""
    return rate(shape.hosts - 1, link, shape.data) if shape.hosts > shape.width else None


def rebuild_by_one(shape, link):
    """The same where one host lays all of a stripe anew: out of its link go k + m fragments for each lost one, but for
    those that stay with itself."""
    return rate(1, link, shape.width * (1 - 1 / (shape.hosts - 1)))


def parity_cost(shape):
    """Which part of the rate without parity is left with it, where links bound both: k of k + m bytes are data."""
    return shape.data / shape.width


def rate(hosts, link, crossing):
    """So many hosts, where so many bytes cross each link, in each direction, for one that is counted; none: no bound."""
    return hosts * link / crossing if crossing > 0 else None
