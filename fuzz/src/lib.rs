//! What several fuzz targets need: values out of a fuzzer's bytes, and a bound on what an input may take in memory.

pub mod feed;
pub mod fragments;
pub mod memory;

/// When the environment names a directory in `FUZZ_SEEDS`, puts `seeds` there: inputs that make sense, to begin with.
pub fn seeds(seeds: impl FnOnce() -> Vec<Vec<u8>>) {
    let Some(directory) = std::env::var_os("FUZZ_SEEDS").map(std::path::PathBuf::from) else { return };
    for (number, seed) in seeds().into_iter().enumerate() {
        std::fs::write(directory.join(format!("seed-{number:03}")), seed).expect("a seed can be written");
    }
}
