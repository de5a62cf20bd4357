//! Looks for damage: reads fragments and compares them with their checksums (DESIGN §4).

use std::sync::Arc;

use protocol::checksum::{BLOCK_SIZE, crc};
use protocol::fragment::FragmentId;
use protocol::storage::StorageError;

use crate::head::Identity;
use crate::superblock::SECTOR;
use crate::target::Target;

/// What is wrong with a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The fragment.
    pub id: FragmentId,
    /// The blocks that are not what their checksums say, counted from the fragment's start.
    pub blocks: Vec<u32>,
    /// The head no longer says what fragment this is; the list still does.
    pub head: bool,
}

impl Target {
    /// Reads up to `limit` fragments behind `after`. Returns what is wrong, and the last fragment that was looked at:
    /// `None` when there are no more.
    pub async fn scrub(
        self: &Arc<Self>,
        after: Option<FragmentId>,
        limit: usize,
    ) -> Result<(Vec<Damage>, Option<FragmentId>), StorageError> {
        self.check_serves()?;
        let ids: Vec<FragmentId> = self.catalog().page(after, limit).iter().map(|stored| stored.header.id).collect();
        let mut damages = Vec::new();
        for id in &ids {
            damages.extend(self.scrub_fragment(*id).await?);
        }
        Ok((damages, ids.last().copied()))
    }

    async fn scrub_fragment(&self, id: FragmentId) -> Result<Option<Damage>, StorageError> {
        let Some(plan) = self.catalog().plan_read(id, 0, u32::MAX) else { return Ok(None) };
        let sector = self.read_data(self.place(plan.run), SECTOR).await?;
        let identity = Identity::decode(&sector, self.owner);
        let (bytes, checksums) = self.read_blocks(&plan).await?;
        let wrong =
            |(index, (block, checksum)): (usize, (&[u8], &u32))| (crc(block) != *checksum).then_some(index as u32);
        let blocks: Vec<u32> = bytes.chunks(BLOCK_SIZE).zip(&checksums).enumerate().filter_map(wrong).collect();
        let head = identity.is_none_or(|identity| identity.generation != plan.generation);
        // It may have left its cells while they were read.
        let harmed = (head || !blocks.is_empty()) && self.catalog().holds(id, plan.generation);
        Ok(harmed.then_some(Damage { id, blocks, head }))
    }
}
