//! `stat`, and what changes what it shows. Awaits.

use std::time::Duration;

use client::ClientError;
use protocol::file;
use protocol::id::InodeId;
use protocol::manager::ManagerError;

use super::translation::{permissions, time, time_kept, time_meant};
use super::{Call, Outcome, Shared};
use crate::attributes::Attributes;
use crate::operation::SetAttributes;
use crate::{Errno, reply};

impl Call {
    pub(super) async fn getattr(self) -> Outcome {
        let attributes = self.attributes().await?;
        Ok(self.attributes_reply(attributes))
    }

    pub(super) async fn statx(self) -> Outcome {
        let attributes = self.attributes().await?;
        let created = time(attributes.created);
        let (attributes, valid) = self.shown(attributes);
        Ok(reply::statx(self.unique, &attributes, Some(created), valid))
    }

    pub(super) async fn setattr(self, set: SetAttributes) -> Outcome {
        let set = set_attributes(&set, self.shared.now());
        if set.accessed.is_some() {
            self.shared.access_times.settle(self.inode);
        }
        let change = set.size.map(|_| self.shared.under_way.change(self.inode, self.shared.host.now()));
        let attributes = self.client().set_attributes(self.inode, set).await?;
        let reply = self.attributes_reply(attributes);
        let Some(change) = change else { return Ok(reply) };
        self.shared.under_way.answers_arrive(self.inode).await;
        Ok(reply.guarded(change))
    }

    async fn attributes(&self) -> Result<file::Attributes, Errno> {
        let told = match self.shared.told.is_directory(self.inode) {
            true => self.client().directory_attributes(self.inode).await,
            false => self.client().attributes(self.inode).await,
        };
        match told {
            Err(ClientError::Manager(ManagerError::Stale)) => {
                self.shared.told.departed(self.inode).ok_or(Errno::ESTALE)
            }
            told => Ok(told?),
        }
    }

    fn attributes_reply(&self, attributes: file::Attributes) -> crate::Frame {
        let (attributes, valid) = self.shown(attributes);
        reply::attributes(self.unique, &attributes, valid)
    }

    /// Of the inode that the kernel asked about, which it knows.
    fn shown(&self, attributes: file::Attributes) -> (Attributes, Duration) {
        let keeps = attributes.kind == file::Kind::Directory && self.keeps_names();
        self.shared.present(attributes, keeps)
    }
}

impl Shared {
    /// Takes away the set-id bits that a write by a plain user takes away, if the file may have any.
    pub(super) async fn shed_set_id(&self, inode: InodeId) -> Result<(), Errno> {
        if !self.set_ids.take(inode) {
            return Ok(());
        }
        let set = file::SetAttributes { clear_set_id: true, ..file::SetAttributes::default() };
        match self.client.set_attributes(inode, set).await {
            Ok(attributes) => {
                self.set_ids.pass(&attributes);
                Ok(())
            }
            Err(error) => {
                self.set_ids.put(inode);
                Err(error.into())
            }
        }
    }
}

/// What the manager is to set.
fn set_attributes(set: &SetAttributes, now: file::Time) -> file::SetAttributes {
    file::SetAttributes {
        mode: set.mode.map(permissions),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        accessed: set.accessed.map(|accessed| time_meant(accessed, now)),
        modified: set.modified.map(|modified| time_meant(modified, now)),
        changed: set.changed.map(time_kept),
        clear_set_id: set.kill_suidgid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{SetTime, Time};

    #[test]
    fn only_what_is_set_is_set() {
        let now = file::Time(5);
        assert_eq!(set_attributes(&SetAttributes::default(), now), file::SetAttributes::default());
        let set = SetAttributes {
            mode: Some(0o104_755),
            accessed: Some(SetTime::Now),
            modified: Some(SetTime::To(Time { seconds: 1, nanoseconds: 2 })),
            kill_suidgid: true,
            ..SetAttributes::default()
        };
        let meant = file::SetAttributes {
            mode: Some(0o4755),
            accessed: Some(now),
            modified: Some(file::Time(1_000_000_002)),
            clear_set_id: true,
            ..file::SetAttributes::default()
        };
        assert_eq!(set_attributes(&set, now), meant);
    }
}
