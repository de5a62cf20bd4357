//! The word that a daemon gives its guard: until when it takes care itself of what its kernel has in memory.
//!
//! It lies in memory that both processes have. Giving it waits for nobody, a daemon that hangs gives none, and a program that
//! takes the place of another goes on with the same.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::time::ClockId;

/// A moment of the clock that all processes of a machine have, and that leases are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(Duration);

impl Tick {
    /// Now.
    pub fn now() -> Tick {
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        Tick(now.try_into().expect("that clock began at zero"))
    }
}

/// The word of one mount. Before it is given for the first time it holds for ever.
pub struct Word(File);

impl Word {
    /// A new one.
    pub fn new() -> io::Result<Word> {
        let word = Word(rustix::fs::memfd_create("dazzle-word", MemfdFlags::CLOEXEC)?.into());
        word.write(u64::MAX)?;
        Ok(word)
    }

    /// The one that another process has, or had.
    pub fn inherit(descriptor: OwnedFd) -> Word {
        Word(descriptor.into())
    }

    /// The same, for another process.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// The descriptor, which the program after has, too.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Gives it: it holds for so long from a moment that has been.
    pub fn give(&self, from: Tick, time: Duration) -> io::Result<()> {
        let until = from.0.saturating_add(time);
        self.write(u64::try_from(until.as_nanos()).unwrap_or(u64::MAX))
    }

    /// How long it holds yet.
    pub fn left(&self) -> Duration {
        let mut until = [0; 8];
        // Memory that cannot be read says nothing.
        let read = self.0.read_exact_at(&mut until, 0);
        let until = read.map_or(Duration::ZERO, |()| Duration::from_nanos(u64::from_ne_bytes(until)));
        until.saturating_sub(Tick::now().0)
    }

    /// Who reads it meanwhile may see half of it, which a second look corrects; of a daemon that stands still nobody does.
    fn write(&self, until: u64) -> io::Result<()> {
        self.0.write_all_at(&until.to_ne_bytes(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_sees_how_long_the_word_holds() {
        let word = Word::new().unwrap();
        let seen = Word::inherit(word.share().unwrap());
        assert!(seen.left() > Duration::from_secs(1 << 30), "it holds until it was given");
        let from = Tick::now();
        word.give(from, Duration::from_secs(60)).unwrap();
        let left = seen.left();
        assert!(left <= Duration::from_secs(60) && left > Duration::from_secs(30), "{left:?}");
        word.give(from, Duration::ZERO).unwrap();
        assert_eq!(seen.left(), Duration::ZERO);
        word.give(from, Duration::MAX).unwrap();
        assert!(seen.left() > Duration::from_secs(1 << 30), "and for ever where there is nobody else");
    }
}
