//! Placeholder until the parts are ready.
#![allow(dead_code)]
mod edge;
fn main() {}
