//! Operations on names, links, directories and extended attributes: managers execute them. Awaits.

use bytes::Bytes;
use protocol::file::{Attributes, Content, DirectoryEntry, NewInode};
use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerError, ManagerReply, ManagerRequest, Rename, Why, XattrMode};
use protocol::token::Grant;

use crate::ClientError;
use crate::client::{Client, Inner, lock};
use crate::whole::whole;

/// What a program may do that was started from a file.
const CAPABILITIES: &[u8] = b"security.capability";
/// How often a file is made that is gone before its maker has it open.
const MAKE_TRIES: u32 = 4;
/// How often a name is looked up whose inode is gone before all is known of it.
const LOOKUP_TRIES: u32 = 8;

impl Client {
    /// Finds a name.
    pub async fn lookup(&self, directory: InodeId, name: Bytes) -> Result<Attributes, ClientError> {
        for _ in 1..LOOKUP_TRIES {
            let (attributes, lost) = self.0.find_name(directory, name.clone()).await?;
            match self.0.completed(attributes, lost).await {
                // Whoever removed it meanwhile may have put another one in its place.
                Err(ClientError::Manager(ManagerError::Stale)) => {}
                other => return other,
            }
        }
        let (attributes, lost) = self.0.find_name(directory, name).await?;
        self.0.completed(attributes, lost).await
    }

    /// Everything about an inode, as its manager knows it.
    pub async fn why(&self, inode: InodeId) -> Result<Why, ClientError> {
        match self.0.ask(inode, ManagerRequest::Why(inode)).await?.answer {
            Answer::Why(why) => Ok(*why),
            _ => Err(ClientError::Foreign("why")),
        }
    }

    /// Makes a name for a new inode of any kind: `mknod`, `mkdir`, `symlink`.
    pub async fn create(&self, directory: InodeId, name: Bytes, new: NewInode) -> Result<Attributes, ClientError> {
        let inner = self.0.clone();
        let request = ManagerRequest::Create { directory, name, new, open: false };
        whole(&self.0.host, async move { inner.make(directory, request).await.map(|(attributes, _)| attributes) }).await
    }

    /// Makes a name for a new file and opens it. [`protocol::manager::ManagerError::Exists`] if the name exists.
    pub async fn create_open(&self, directory: InodeId, name: Bytes, new: NewInode) -> Result<Attributes, ClientError> {
        let inner = self.0.clone();
        let request = ManagerRequest::Create { directory, name, new, open: true };
        whole(&self.0.host, async move { inner.make_open(directory, request).await }).await
    }

    /// Makes a file without a name and opens it (`O_TMPFILE`).
    pub async fn create_unnamed(&self, directory: InodeId, new: NewInode) -> Result<Attributes, ClientError> {
        let inner = self.0.clone();
        let request = ManagerRequest::CreateUnnamed { directory, new };
        whole(&self.0.host, async move { inner.make_open(directory, request).await }).await
    }

    /// Gives `inode` one more name.
    pub async fn link(&self, inode: InodeId, directory: InodeId, name: Bytes) -> Result<Attributes, ClientError> {
        let inner = self.0.clone();
        whole(&self.0.host, async move {
            let lost = inner.tokens.lost();
            let request = ManagerRequest::Link { inode, directory, name };
            let reply = inner.change(directory, &[directory, inode], request).await?;
            inner.linked(inode);
            match reply.answer {
                Answer::Entry(attributes, _) | Answer::Attributes(attributes) => {
                    inner.completed_change(attributes, lost).await
                }
                _ => inner.attributes(inode).await,
            }
        })
        .await
    }

    /// Removes a name that is no directory's.
    pub async fn unlink(&self, directory: InodeId, name: Bytes) -> Result<(), ClientError> {
        self.remove(directory, ManagerRequest::Unlink { directory, name }).await
    }

    /// Removes an empty directory.
    pub async fn remove_directory(&self, directory: InodeId, name: Bytes) -> Result<(), ClientError> {
        self.remove(directory, ManagerRequest::RemoveDirectory { directory, name }).await
    }

    /// Renames.
    pub async fn rename(&self, rename: Rename) -> Result<(), ClientError> {
        let inner = self.0.clone();
        whole(&self.0.host, async move {
            let (from, to) = (rename.from_directory, rename.to_directory);
            let reply = inner.change(from, &[from, to], ManagerRequest::Rename(rename)).await?;
            inner.removed(&reply)
        })
        .await
    }

    /// Where a symbolic link leads.
    pub async fn read_link(&self, inode: InodeId) -> Result<Bytes, ClientError> {
        bytes(self.0.ask(inode, ManagerRequest::ReadLink(inode)).await?)
    }

    /// A page of a directory, without `.` and `..`: entries behind the cookie `after` (0 begins), and whether these were
    /// the last. With attributes where `attributes` asks for them and they are at hand.
    pub async fn list(
        &self,
        directory: InodeId,
        after: u64,
        limit: u32,
        attributes: bool,
    ) -> Result<(Vec<DirectoryEntry>, bool), ClientError> {
        let lost = self.0.tokens.lost();
        let reply = self.0.ask(directory, ManagerRequest::List { directory, after, limit, attributes }).await?;
        let Answer::Listing(mut entries, last) = reply.answer else { return Err(ClientError::Foreign("list")) };
        for entry in &mut entries {
            let told = entry.attributes.filter(|_| self.0.tokens.lost() == lost);
            entry.attributes = told.and_then(|attributes| self.0.overlaid(attributes));
        }
        Ok((entries, last))
    }

    /// The directory that holds this one.
    pub async fn parent(&self, directory: InodeId) -> Result<InodeId, ClientError> {
        match self.0.ask(directory, ManagerRequest::Parent(directory)).await?.answer {
            Answer::Inode(inode) => Ok(inode),
            _ => Err(ClientError::Foreign("parent")),
        }
    }

    /// Reads an extended attribute.
    pub async fn xattr(&self, inode: InodeId, name: Bytes) -> Result<Bytes, ClientError> {
        let read =
            if name == CAPABILITIES { self.0.capabilities(inode).await } else { self.0.xattr(inode, name).await };
        self.0.confirm().await?;
        read
    }

    /// Sets an extended attribute. `clear_set_gid`: an access ACL set by one who is not of the file's group.
    pub async fn set_xattr(
        &self,
        inode: InodeId,
        (name, value): (Bytes, Bytes),
        mode: XattrMode,
        clear_set_gid: bool,
    ) -> Result<(), ClientError> {
        let inner = self.0.clone();
        let request = ManagerRequest::SetXattr { inode, name, value, mode, clear_set_gid };
        whole(&self.0.host, async move {
            // Known from now on: whoever just made the file, and has not heard so yet, must learn of this.
            let _file = inner.entry(inode);
            inner.change(inode, &[inode], request).await.map(drop)
        })
        .await
    }

    /// The names of all extended attributes.
    pub async fn list_xattrs(&self, inode: InodeId) -> Result<Vec<Bytes>, ClientError> {
        match self.0.ask(inode, ManagerRequest::ListXattrs(inode)).await?.answer {
            Answer::Names(names) => Ok(names),
            _ => Err(ClientError::Foreign("names of attributes")),
        }
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, inode: InodeId, name: Bytes) -> Result<(), ClientError> {
        let inner = self.0.clone();
        let request = ManagerRequest::RemoveXattr { inode, name };
        whole(&self.0.host, async move { inner.change(inode, &[inode], request).await.map(drop) }).await
    }

    async fn remove(&self, directory: InodeId, request: ManagerRequest) -> Result<(), ClientError> {
        let inner = self.0.clone();
        whole(&self.0.host, async move {
            let reply = inner.change(directory, &[directory], request).await?;
            inner.removed(&reply)
        })
        .await
    }
}

impl Inner {
    /// What a name is now, and how much was given up before it was asked for.
    async fn find_name(&self, directory: InodeId, name: Bytes) -> Result<(Attributes, u64), ClientError> {
        let lost = self.tokens.lost();
        let (attributes, _) = entry(self.look(directory, Some(name)).await?)?;
        Ok((attributes, lost))
    }

    /// Asks what a name in a directory is, or the directory itself; and for its names, unless they are held.
    pub(crate) async fn look(&self, directory: InodeId, name: Option<Bytes>) -> Result<ManagerReply, ClientError> {
        let mut asking = self.tokens.ask_names(directory);
        let request = match (name, &asking) {
            (name, Some(_)) => ManagerRequest::Look { directory, name },
            (Some(name), None) => ManagerRequest::Lookup { directory, name },
            (None, None) => ManagerRequest::Attributes(directory),
        };
        let reply = self.ask(directory, request).await?;
        if let Some(asking) = &mut asking {
            asking.take(reply.granted);
        }
        Ok(reply)
    }

    async fn xattr(&self, inode: InodeId, name: Bytes) -> Result<Bytes, ClientError> {
        bytes(self.ask(inode, ManagerRequest::Xattr { inode, name }).await?)
    }

    /// The kernel asks for these whenever something is first written to a file that it has just come to know. Whoever holds the
    /// file remembers that it has none.
    async fn capabilities(&self, inode: InodeId) -> Result<Bytes, ClientError> {
        let name = Bytes::from_static(CAPABILITIES);
        let pin = self.pin_held(inode).await;
        let Some(file) = pin.as_ref().and_then(|_| self.find(inode)) else { return self.xattr(inode, name).await };
        let unchanging = {
            let state = lock(&file.state);
            if state.file.as_ref().is_some_and(|known| known.is_incapable) {
                return Err(ManagerError::NoAttribute.into());
            }
            state.unchanging()
        };
        let read = self.xattr(inode, name).await;
        let mut state = lock(&file.state);
        let is_as_before = unchanging.is_some() && state.unchanging() == unchanging;
        if let (Some(known), Err(ClientError::Manager(ManagerError::NoAttribute))) = (&mut state.file, &read) {
            known.is_incapable = is_as_before;
        }
        read
    }

    /// Makes an inode; its attributes, and what is granted beside.
    async fn make(
        &self,
        directory: InodeId,
        request: ManagerRequest,
    ) -> Result<(Attributes, Option<Grant>), ClientError> {
        let reply = self.change(directory, &[directory], request).await?;
        let Answer::Entry(attributes, _) = reply.answer else { return Err(ClientError::Foreign("create")) };
        self.note(attributes.inode, &reply);
        Ok((attributes, reply.granted))
    }

    async fn make_open(&self, directory: InodeId, request: ManagerRequest) -> Result<Attributes, ClientError> {
        for _ in 1..MAKE_TRIES {
            match self.try_make_open(directory, request.clone()).await {
                // Either the directory is gone; or the manager died, and the next one freed the new file before it heard that
                // it is open here.
                Err(ClientError::Manager(ManagerError::Stale)) => {}
                other => return other,
            }
        }
        self.try_make_open(directory, request).await
    }

    async fn try_make_open(&self, directory: InodeId, request: ManagerRequest) -> Result<Attributes, ClientError> {
        let asked = self.tokens.turn();
        let (attributes, granted) = self.make(directory, request).await?;
        self.opened_new(attributes, granted, asked).await?;
        Ok(attributes)
    }

    /// Names changed, and the next fsync of their inodes covers that; with the last name of a file that nobody has open,
    /// its unwritten bytes are gone too.
    fn removed(&self, reply: &ManagerReply) -> Result<(), ClientError> {
        match &reply.answer {
            Answer::Removed(Some((inode, 0))) => self.unlinked(*inode),
            Answer::Removed(Some((inode, _))) => self.note(*inode, reply),
            Answer::Renamed { changed, removed } => {
                changed.iter().for_each(|&inode| self.note(inode, reply));
                removed.iter().for_each(|&inode| self.unlinked(inode));
            }
            Answer::Removed(None) | Answer::Done => {}
            _ => return Err(ClientError::Foreign("remove")),
        }
        Ok(())
    }
}

/// An inode's attributes and content from an answer.
pub(crate) fn entry(reply: ManagerReply) -> Result<(Attributes, Option<Content>), ClientError> {
    match reply.answer {
        Answer::Entry(attributes, content) => Ok((attributes, content)),
        Answer::Attributes(attributes) => Ok((attributes, None)),
        _ => Err(ClientError::Foreign("entry")),
    }
}

fn bytes(reply: ManagerReply) -> Result<Bytes, ClientError> {
    match reply.answer {
        Answer::Bytes(bytes) => Ok(bytes),
        _ => Err(ClientError::Foreign("bytes")),
    }
}
