//! All that is told of managers in the simulated world, as one program: a program for each file takes minutes more to build.

mod a_new_manager_finds_what_the_old_one_acknowledged;
mod an_audit_finds_each_fault_once;
mod bytes_of_dead_writers_are_not_lost;
mod bytes_shared_between_managers_are_counted;
mod linear;
mod pages_that_come_late_are_waited_for;
mod several;
mod several_managers_keep_one_name_space;
mod slots_outlive_their_manager;
mod what_an_earlier_life_said_comes_too_late;
mod what_others_are_needed_for_is_done_when_they_are_back;
