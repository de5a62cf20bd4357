//! What is tested of the simulated world from outside, as one program: a program for each file takes longer to build.

mod a_cut_link_is_gone_around;
mod a_disk_keeps_what_was_synced;
mod calls_fail_as_a_network_fails_them;
mod the_world_replays_from_its_seed;
