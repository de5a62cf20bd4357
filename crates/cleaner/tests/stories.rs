//! All that is told of the cleaner in the simulated world, as one program: a program for each file takes longer to build.

mod book;
mod cost_benefit_parts_hot_from_cold;
mod overwriting_goes_on_for_ever;
