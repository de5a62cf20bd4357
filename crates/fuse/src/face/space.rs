//! `statfs`. Awaits.

use client::Statfs;
use protocol::file::NAME_MAX;

use super::{Call, Outcome};
use crate::attributes::Space;
use crate::reply;

/// The unit in which space is told, in bytes.
const BLOCK_SIZE: u32 = 4096;

impl Call {
    pub(super) async fn statfs(self) -> Outcome {
        let told = self.client().statfs().await?;
        Ok(reply::space(self.unique, &space(&told)))
    }
}

/// What was told in bytes, in whole blocks: what is free is rather less than more.
fn space(told: &Statfs) -> Space {
    let blocks = |bytes: u64| bytes / u64::from(BLOCK_SIZE);
    Space {
        block_size: BLOCK_SIZE,
        blocks: blocks(told.bytes_total),
        blocks_free: blocks(told.bytes_free),
        blocks_available: blocks(told.bytes_available),
        inodes: told.inodes_total,
        inodes_free: told.inodes_free,
        name_bytes_max: NAME_MAX as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_told_in_blocks_that_are_there() {
        let told =
            Statfs { bytes_total: 1 << 20, bytes_free: 8191, bytes_available: 4095, inodes_total: 10, inodes_free: 3 };
        let space = space(&told);
        assert_eq!((space.blocks, space.blocks_free, space.blocks_available), (256, 1, 0));
        assert_eq!((space.inodes, space.inodes_free, space.name_bytes_max), (10, 3, 255));
    }
}
