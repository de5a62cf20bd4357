//! `stat` and `chmod`. Awaits.

use protocol::file::{Attributes, SetAttributes};
use protocol::id::InodeId;
use protocol::manager::{ManagerError, ManagerReply, ManagerRequest};
use protocol::token::TokenMode;

use crate::ClientError;
use crate::client::{Client, Inner, lock};
use crate::names::entry;
use crate::opens::OpenFile;
use crate::pins::Pin;
use crate::whole::whole;

impl Client {
    /// `stat`: what the manager knows, with this client's unwritten changes over it. Whoever holds the file knows, too.
    pub async fn attributes(&self, inode: InodeId) -> Result<Attributes, ClientError> {
        let attributes = self.0.attributes(inode).await?;
        self.0.confirm().await?;
        Ok(attributes)
    }

    /// `stat` of what is known to be a directory; what is asked for is then kept, if it may be ([`Client::keeps_names`]).
    pub async fn directory_attributes(&self, directory: InodeId) -> Result<Attributes, ClientError> {
        let (attributes, _) = entry(self.0.look(directory, None).await?)?;
        self.0.confirm().await?;
        Ok(attributes)
    }

    /// `chmod`, `chown`, `utimens`, `truncate`, any of them at once. Answers what is then true.
    pub async fn set_attributes(&self, inode: InodeId, set: SetAttributes) -> Result<Attributes, ClientError> {
        let inner = self.0.clone();
        whole(&self.0.host, async move { inner.set_attributes(inode, set).await }).await
    }
}

impl Inner {
    pub(crate) async fn attributes(&self, inode: InodeId) -> Result<Attributes, ClientError> {
        loop {
            // Held in place: what was written here might be given up between an answer from before and the look at the file.
            let pin = self.pin_held(inode).await;
            let lost = self.tokens.lost();
            let before = pin.as_ref().and_then(|_| self.find(inode)).and_then(|file| {
                self.settle(&file);
                let state = lock(&file.state);
                state.file.as_ref().map(|known| (known.ask(), known.is_settled(), state.unchanging(), known.told()))
            });
            if let Some((.., Some(told))) = before {
                return Ok(told);
            }
            let (mut attributes, _) = entry(self.ask(inode, ManagerRequest::Attributes(inode)).await?)?;
            let Some(file) = self.find(inode) else {
                // Forgotten while the answer was under way: the answer may be from before what was known of it.
                if before.is_some() && self.tokens.lost() != lost {
                    continue;
                }
                return Ok(attributes);
            };
            self.settle(&file);
            let mut state = lock(&file.state);
            let by_now = state.unchanging();
            let Some(known) = &mut state.file else { return Ok(attributes) };
            let Some((asked, was_settled, unchanging, _)) = before else {
                if known.is_settled() {
                    continue;
                }
                known.overlay(&mut attributes, None);
                return Ok(attributes);
            };
            // Acknowledged while the answer was under way: the answer may be from before.
            if known.is_settled() && !was_settled {
                continue;
            }
            if known.overlay(&mut attributes, Some(asked)) && unchanging.is_some() && by_now == unchanging {
                known.tell(&attributes);
            }
            return Ok(attributes);
        }
    }

    /// Attributes that came with another answer, with this client's changes over them. None if that answer may be older
    /// than an acknowledgement: ask.
    pub(crate) fn overlaid(&self, mut attributes: Attributes) -> Option<Attributes> {
        let Some(file) = self.find(attributes.inode) else { return Some(attributes) };
        let mut state = lock(&file.state);
        let Some(known) = &mut state.file else { return Some(attributes) };
        if known.is_settled() {
            return None;
        }
        known.overlay(&mut attributes, None);
        Some(attributes)
    }

    /// As [`Inner::overlaid`], asking where needed, and where files were given up since `lost` was counted: the answer may
    /// be from before what was written here was told.
    pub(crate) async fn completed(&self, attributes: Attributes, lost: u64) -> Result<Attributes, ClientError> {
        match self.overlaid(attributes).filter(|_| self.tokens.lost() == lost) {
            Some(attributes) => Ok(attributes),
            None => self.attributes(attributes.inode).await,
        }
    }

    /// As [`Inner::completed`], of an inode that was changed: that took effect, whatever became of the inode since.
    pub(crate) async fn completed_change(&self, attributes: Attributes, lost: u64) -> Result<Attributes, ClientError> {
        match self.completed(attributes, lost).await {
            Err(ClientError::Manager(ManagerError::Stale | ManagerError::NotFound)) => Ok(attributes),
            other => other,
        }
    }

    /// Takes in what managers acknowledged.
    pub(crate) fn settle(&self, file: &OpenFile) {
        let acknowledged = lock(&self.outbox).acknowledged();
        if let Some(known) = &mut lock(&file.state).file {
            known.settle(acknowledged);
        }
    }

    async fn set_attributes(&self, inode: InodeId, set: SetAttributes) -> Result<Attributes, ClientError> {
        let request = ManagerRequest::SetAttributes(inode, set);
        let touches_content = set.size.is_some() || set.modified.is_some();
        let lost = self.tokens.lost();
        let reply = {
            let pin = if touches_content { self.pin_file(inode).await? } else { None };
            match pin.as_ref().map(|_| self.entry(inode)) {
                Some(file) => self.reshape(&file, set, request).await?,
                None => self.change(inode, &[inode], request).await?,
            }
        };
        let (attributes, _) = entry(reply)?;
        self.completed_change(attributes, lost).await
    }

    /// Pins an inode to change its content; nothing, if it has none.
    async fn pin_file(&self, inode: InodeId) -> Result<Option<Pin<'_>>, ClientError> {
        match self.pin(inode, TokenMode::Write).await {
            Ok(pin) => Ok(Some(pin)),
            Err(ClientError::Invalid) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets size or times of a file of which the manager may not know everything: deltas in records go first, for they
    /// tell of what came before. What is only dirty stays here, and keeps the new bounds.
    async fn reshape(
        &self,
        file: &OpenFile,
        set: SetAttributes,
        request: ManagerRequest,
    ) -> Result<ManagerReply, ClientError> {
        let _shape = file.shape.write().await;
        self.applied(file.recorded()).await?;
        self.settle(file);
        let reply = self.change(file.inode, &[file.inode], request).await?;
        let mut state = lock(&file.state);
        if let Some(known) = &mut state.file {
            let before = known.weight();
            if let Some(size) = set.size {
                known.truncated(size);
            }
            if let Some(time) = set.modified {
                known.set_written(time);
            }
            self.budget.change(before, known.weight());
        }
        Ok(reply)
    }
}
