//! A target's disk, watched: all that is asked of it is counted, and while anything is under way it is looked at whether that
//! ever ends. `hang` decides.
//!
//! A target has its disk through these types alone, so nothing that it asks goes uncounted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use event_listener::Event;
use host::{Disk, DiskError, DiskUsage, File, Host};

use crate::hang::{Counts, Kind, LOOKS_MAX, Looks};

/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long a disk may leave everything of a kind unanswered before it hangs; it is noticed within a second. A disk that is
/// merely busy ends something meanwhile, and this is less than those wait who write.
pub const HANG_PATIENCE: Duration = LOOK.saturating_mul(LOOKS_MAX);
/// What is said of a disk that hangs.
pub(crate) const HANGS: &str = "its disk has not answered for 15 s";

const _: () = assert!(HANG_PATIENCE.as_secs() == 15, "people are told the truth");

/// A disk.
#[derive(Clone)]
pub(crate) struct WatchedDisk {
    disk: Disk,
    watch: Arc<Watch>,
}

/// One of its byte spaces. All clones and all spaces of a disk are counted together.
#[derive(Clone)]
pub(crate) struct WatchedFile {
    file: File,
    watch: Arc<Watch>,
}

struct Watch {
    host: Host,
    counts: Counts,
    /// Whether somebody looks: as long as anything is under way.
    is_looked_at: AtomicBool,
    /// It was found to hang.
    found: Event,
}

/// Something that the disk was asked, until it has ended or was cut short.
struct UnderWay<'a> {
    counts: &'a Counts,
    kind: Kind,
}

impl WatchedDisk {
    pub(crate) fn new(host: Host, disk: Disk) -> WatchedDisk {
        let (counts, is_looked_at, found) = (Counts::default(), AtomicBool::new(false), Event::new());
        WatchedDisk { disk, watch: Arc::new(Watch { host, counts, is_looked_at, found }) }
    }

    pub(crate) fn open(&self, name: &'static str) -> Result<WatchedFile, DiskError> {
        Ok(WatchedFile { file: self.disk.open(name)?, watch: self.watch.clone() })
    }

    pub(crate) fn usage(&self) -> Result<DiskUsage, DiskError> {
        self.disk.usage()
    }

    /// Whether it hangs now.
    pub(crate) fn hangs(&self) -> bool {
        self.watch.counts.hangs()
    }

    /// Returns when it hangs.
    pub(crate) async fn hang(&self) {
        loop {
            let found = self.watch.found.listen();
            if self.hangs() {
                return;
            }
            found.await;
        }
    }
}

impl WatchedFile {
    pub(crate) async fn read(&self, offset: u64, length: usize) -> Result<Bytes, DiskError> {
        let _under_way = self.watch.begin(Kind::Read);
        self.file.read(offset, length).await
    }

    pub(crate) async fn write(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DiskError> {
        let _under_way = self.watch.begin(Kind::Write);
        self.file.write(offset, parts).await
    }

    pub(crate) async fn write_durably(&self, offset: u64, parts: Vec<Bytes>) -> Result<(), DiskError> {
        let _under_way = self.watch.begin(Kind::Sync);
        self.file.write_durably(offset, parts).await
    }

    pub(crate) async fn sync(&self) -> Result<(), DiskError> {
        let _under_way = self.watch.begin(Kind::Sync);
        self.file.sync().await
    }

    pub(crate) async fn reserve(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        let _under_way = self.watch.begin(Kind::Write);
        self.file.reserve(offset, length).await
    }

    pub(crate) async fn discard(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        let _under_way = self.watch.begin(Kind::Write);
        self.file.discard(offset, length).await
    }

    pub(crate) fn size(&self) -> Result<u64, DiskError> {
        self.file.size()
    }
}

impl Watch {
    fn begin(self: &Arc<Self>, kind: Kind) -> UnderWay<'_> {
        self.counts.begin(kind);
        if !self.is_looked_at.load(SeqCst) && !self.is_looked_at.swap(true, SeqCst) {
            self.host.spawn(self.clone().look());
        }
        UnderWay { counts: &self.counts, kind }
    }

    /// Looks again and again, until nothing is under way.
    async fn look(self: Arc<Self>) {
        let mut looks = Looks::default();
        while self.goes_on() {
            if looks.look(&self.counts) {
                self.found.notify(usize::MAX);
            }
            self.host.sleep(LOOK).await;
        }
    }

    /// Whether there is anything to look at. If not, whoever begins something next has another begin to look.
    fn goes_on(&self) -> bool {
        if self.counts.is_busy() {
            return true;
        }
        self.is_looked_at.store(false, SeqCst);
        // Something may have begun in between, and have found that it is looked at.
        self.counts.is_busy() && !self.is_looked_at.swap(true, SeqCst)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.counts.end(self.kind);
    }
}
