//! All that is told of registries in the simulated world, as one program: a program for each file takes longer to build.

mod a_cluster_agrees;
mod a_registry_goes_on_without_its_quorum;
mod cluster;
mod what_was_agreed_stays;
