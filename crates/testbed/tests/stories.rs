//! Stories of clients and of whole clusters in the simulated world, as one program: a program for each file takes minutes more to
//! build. `a_node_keeps_its_word` and `a_cluster_keeps_its_word`, which run for hours if asked to, are programs of their own.

mod a_disk_hangs_and_answers_again;
mod a_reader_is_behind_the_maps;
mod a_registry_is_rebuilt;
mod a_restart_keeps_what_is_open;
mod all_links_go_for_a_while;
mod an_empty_disk_after_a_power_loss;
mod clients_see_one_file_system;
mod clocks_that_differ_too_much;
mod files;
mod heirs_die_too;
mod mirrors_are_read_at_home;
#[allow(dead_code, reason = "`a_cluster_keeps_its_word` uses the rest")]
#[path = "whole_cluster/rack.rs"]
mod rack;
mod readers_wait_for_who_is_late;
mod redundancy_comes_back_by_itself;
mod repair_calls_nobody_whole_too_early;
mod storage_is_added;
mod storage_is_taken_away;
mod two_machines_do_not_reach_each_other;
mod what_fits_is_not_refused;
mod who_reads_in_order;
