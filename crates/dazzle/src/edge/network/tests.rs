//! Networks of several nodes in one process, over real sockets.
