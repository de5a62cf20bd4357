//! All that is told of a client in the simulated world, as one program: a program for each file takes longer to build.

mod a_new_file_is_found_before_its_maker_hears_of_it;
mod files_are_forgotten_while_more_are_made;
mod locks_are_waited_for_by_so_many;
mod support;
mod what_was_written_is_read;
