//! Requests as Linux 6.18 wrote them (`requests.txt`), by name.

use bytes::Bytes;

/// All of them, in the order of the file.
pub fn requests() -> Vec<(&'static str, Bytes)> {
    let lines = include_str!("requests.txt").lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.split_once(' ').expect("a name, a space, digits"))
        .map(|(name, hex)| (name, bytes(hex)))
        .collect()
}

/// What hexadecimal digits mean; spaces are ignored.
pub fn bytes(hex: &str) -> Bytes {
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}
