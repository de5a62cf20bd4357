//! Placeholder until the parts are ready.
#![allow(dead_code)]
mod config;
mod edge;
fn main() {}
