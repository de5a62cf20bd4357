//! All that is told of logs in the simulated world, as one program: a program for each file takes longer to build. The model
//! of sealing, which can run for hours, is a program of its own.

mod a_log_goes_on_in_another_process;
mod a_log_is_fast_and_whole;
mod a_machine_that_is_gone_is_asked_in_vain_for_a_moment;
mod a_node_without_a_replica_follows_the_maps;
mod all_links_go_for_a_while;
mod an_acknowledged_record_survives_sealing;
mod an_open_log_follows_the_groups;
mod everything_stored_has_its_turn;
mod rubbish_of_targets_is_no_panic;
mod support;
mod what_rots_is_mended;
mod what_was_deleted_in_part_is_in_nobodys_way;
mod whole_is_who_lacks_nothing;
