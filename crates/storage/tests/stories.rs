//! All that is told of targets in the simulated world, as one program: a program for each file takes longer to build.

mod a_hung_disk_stops_nobody_for_long;
mod damage_is_found_and_refused;
mod model;
mod what_was_acknowledged_survives;
