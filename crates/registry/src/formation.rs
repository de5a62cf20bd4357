//! Which stripe groups are laid over which targets.
//!
//! k follows from the number of live failure domains, never from a wish (DESIGN §3): m+1 domains give 1+m, each more
//! widens the stripes up to the class's default. With more targets than a stripe is wide, one group begins at every
//! target, so that all share the load.

use protocol::fragment::{FRAGMENT_SIZE, Geometry};
use protocol::id::TargetId;
use protocol::maps::GroupEntry;

/// The widest default for m = 1 and for m ≥ 2.
const DATA_MAX_XOR: usize = 4;
const DATA_MAX_CODED: usize = 8;

/// The groups over `targets` (one failure domain each) for stripes that survive the loss of `parity` of them. With too
/// few targets for that class the parity shrinks: the volume goes on degraded, and `status` says so.
pub fn groups(targets: &[TargetId], parity: u8) -> Vec<GroupEntry> {
    if targets.is_empty() {
        return Vec::new();
    }
    let parity = usize::from(parity).min(targets.len() - 1);
    let data_max = if parity <= 1 { DATA_MAX_XOR } else { DATA_MAX_CODED };
    let data = if parity == 0 { 1 } else { (targets.len() - parity).min(data_max) };
    let width = data + parity;
    let geometry = Geometry { data: data as u8, parity: parity as u8, fragment_size: FRAGMENT_SIZE };
    let begins = if width == targets.len() { 1 } else { targets.len() };
    (0..begins)
        .map(|begin| GroupEntry {
            targets: (0..width).map(|member| targets[(begin + member) % targets.len()]).collect(),
            geometry,
            current: true,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(targets: u32, parity: u8) -> (u8, u8, usize) {
        let targets: Vec<_> = (0..targets).map(TargetId).collect();
        let groups = groups(&targets, parity);
        (groups[0].geometry.data, groups[0].geometry.parity, groups.len())
    }

    #[test]
    fn stripes_widen_with_the_domains() {
        assert_eq!(shape(1, 0), (1, 0, 1));
        assert_eq!(shape(2, 1), (1, 1, 1));
        assert_eq!(shape(3, 1), (2, 1, 1));
        assert_eq!(shape(5, 1), (4, 1, 1));
        assert_eq!(shape(6, 1), (4, 1, 6));
        assert_eq!(shape(6, 2), (4, 2, 1));
        assert_eq!(shape(12, 2), (8, 2, 12));
    }

    #[test]
    fn too_few_domains_degrade() {
        assert_eq!(shape(1, 1), (1, 0, 1));
        assert_eq!(shape(2, 2), (1, 1, 1));
    }
}
