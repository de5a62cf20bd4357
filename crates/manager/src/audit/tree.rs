//! Whether every directory with a name leads up to the root.
//!
//! A way up that ends elsewhere ends at a directory that does not exist, or that has no name: that is told of this one, and
//! not again of all that lies below it. What is left are circles.

use std::collections::BTreeMap;

use protocol::id::InodeId;

use super::Known;

/// The circles of directories, each in words.
pub(super) fn circles(inodes: &BTreeMap<InodeId, Known>) -> Vec<String> {
    // Which walk came by first. A walk that comes by where it was itself has gone round.
    let mut seen: BTreeMap<InodeId, InodeId> = BTreeMap::new();
    let mut circles = Vec::new();
    for &start in inodes.keys() {
        let mut path = Vec::new();
        let mut at = Some(start).filter(|&inode| inode != InodeId::ROOT);
        while let Some(inode) = at {
            if let Some(&walk) = seen.get(&inode) {
                if walk == start {
                    let first = path.iter().position(|&passed| passed == inode).expect("this walk came by");
                    circles.push(in_words(&path[first..]));
                }
                break;
            }
            seen.insert(inode, start);
            path.push(inode);
            at = inodes.get(&inode).and_then(|known| known.named_in).filter(|&above| above != InodeId::ROOT);
        }
    }
    circles
}

fn in_words(circle: &[InodeId]) -> String {
    let ids: Vec<String> = circle.iter().map(|inode| inode.0.to_string()).collect();
    format!("directories {} lie in each other, and no path from the root leads to them", ids.join(", "))
}
