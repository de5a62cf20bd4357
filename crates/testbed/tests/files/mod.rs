//! Files that one client writes and fsyncs, with what must be read of them ever after.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError, WriteAt};
use host::sim::{Dice, World};
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::InodeId;
use protocol::manager::{CloneRange, ManagerError};

/// What was fsynced.
#[derive(Default)]
pub struct Files(BTreeMap<String, Vec<u8>>);

impl Files {
    /// Writes so many, some of which share bytes with another.
    pub async fn write(&mut self, client: &Client, dice: &mut Dice, count: usize) {
        for _ in 0..count {
            let length = dice.within(1..600_000);
            let mut bytes = dice.roll().to_le_bytes().repeat(length.div_ceil(8) as usize);
            bytes.truncate(length as usize);
            let source = self.create(client, &bytes).await;
            client.write(source, WriteAt::Offset(0), bytes.clone().into()).await.expect("there is room");
            client.fsync(source, false).await.expect("enough targets live");
            if dice.below(3) == 0 {
                // Both share what was written.
                let target = self.create(client, &bytes).await;
                let range = CloneRange { source, source_offset: 0, target, target_offset: 0, length };
                assert_eq!(client.copy_range(range).await, Ok(length));
                client.fsync(target, false).await.expect("enough targets live");
                client.close(target).await;
            }
            client.close(source).await;
        }
    }

    async fn create(&mut self, client: &Client, bytes: &[u8]) -> InodeId {
        let name = format!("file-{}", self.0.len());
        let (target, caller) = (Bytes::new(), Caller::default());
        let new = NewInode { kind: Kind::File, mode: 0o644, mask: 0, device: 0, target, caller };
        let made = client.create_open(InodeId::ROOT, Bytes::from(name.clone()), new).await.expect("a new name");
        self.0.insert(name, bytes.to_vec());
        made.inode
    }

    /// Reads all of them.
    pub async fn verify(&self, world: &World, client: &Client) {
        for (name, bytes) in &self.0 {
            let found = find(world, client, name).await;
            let read = client.read(found, 0, bytes.len() as u32 + 1).await;
            let read = read.unwrap_or_else(|error| panic!("{name}: {error}")).concat();
            assert!(read == *bytes, "{name}: the very bytes");
        }
    }
}

/// Slots of a machine that died are taken over within seconds.
async fn find(world: &World, client: &Client, name: &str) -> InodeId {
    let mut last = None;
    for _ in 0..120 {
        match client.lookup(InodeId::ROOT, Bytes::from(name.to_owned())).await {
            Ok(attributes) => return attributes.inode,
            Err(ClientError::Manager(ManagerError::NotFound)) => panic!("{name} is gone"),
            Err(error) => last = Some(error),
        }
        world.sleep(Duration::from_secs(1)).await;
    }
    panic!("{name}: {last:?}")
}
