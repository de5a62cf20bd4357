//! What is tested of requests and replies from outside, as one program: a program for each file takes longer to build.

mod captured;
mod replies_have_the_bytes_linux_reads;
mod requests_of_linux_read_as_they_were_meant;
mod rubbish_never_panics;
mod the_handshake_takes_what_is_offered_and_wanted;
