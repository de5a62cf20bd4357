//! The directory of a file system: its settings file, and its targets' places.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use host::{Disk, DiskError};
use tokio::runtime::Handle;

use super::block_device::{self, BlockDevice};
use super::directory::{Directory, Room};

/// Reads a text file.
pub fn read_text(path: &Path) -> io::Result<String> {
    std::fs::read_to_string(path)
}

/// Writes a text file so that either the old or the new content is found after a crash.
pub fn write_text(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, text)?;
    std::fs::File::open(&fresh)?.sync_all()?;
    std::fs::rename(&fresh, path)?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    std::fs::File::open(parent)?.sync_all()
}

/// Something in a directory that is not among `expected`.
pub fn unexpected(path: &Path, expected: &[&OsStr]) -> io::Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if !expected.contains(&entry.file_name().as_os_str()) {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

/// Makes a directory and those above it.
pub fn make_directory(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)
}

/// Directories that were made for something that may yet fail, and files in others. Unless they are kept, those that are still
/// empty go with it.
#[derive(Default)]
pub struct Made {
    directories: Vec<PathBuf>,
    /// What lay in directories that were there before.
    watched: Vec<(PathBuf, BTreeSet<OsString>)>,
}

impl Made {
    /// Makes a directory and those above it.
    pub fn make(&mut self, path: &Path) -> io::Result<()> {
        let is_missing = |path: &&Path| {
            let found = std::fs::symlink_metadata(path);
            !path.as_os_str().is_empty() && found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let missing: Vec<PathBuf> = path.ancestors().take_while(is_missing).map(Path::to_owned).collect();
        self.directories.extend(missing.into_iter().rev());
        make_directory(path)
    }

    /// The same where nothing lies yet; a file stays one.
    pub fn make_missing(&mut self, path: &Path) -> io::Result<()> {
        if path.exists() { Ok(()) } else { self.make(path) }
    }

    /// From now on files that come to lie in a directory, and are called as a target's are, count as made: to look at one makes
    /// them.
    pub fn watch(&mut self, path: &Path) {
        if let Ok(names) = names(path) {
            self.watched.push((path.to_owned(), names));
        }
    }

    /// What they were made for has come to be.
    pub fn keep(mut self) {
        (self.directories, self.watched) = Default::default();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // What is not empty is somebody's.
        let is_empty_file = |path: &PathBuf| {
            std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
        };
        for (directory, before) in &self.watched {
            let now = names(directory).unwrap_or_default();
            let new = now.difference(before).filter(|name| block_device::is_space(name));
            let made = new.map(|name| directory.join(name)).filter(is_empty_file);
            made.for_each(|path| drop(std::fs::remove_file(path)));
        }
        // The last made lies deepest.
        self.directories.iter().rev().for_each(|path| drop(std::fs::remove_dir(path)));
    }
}

/// What lies in a directory.
fn names(path: &Path) -> io::Result<BTreeSet<OsString>> {
    std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// The disk at `path`: a directory, or else a device or plain file.
pub fn open_disk(path: &Path, room: Room, runtime: Handle) -> Result<Disk, DiskError> {
    let metadata =
        std::fs::metadata(path).map_err(|error| DiskError::Failed(format!("{}: {error}", path.display())))?;
    if metadata.is_dir() { Directory::disk(path, room, runtime) } else { BlockDevice::disk(path, runtime) }
}

/// Where something is, whatever it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Without links and detours.
    path: PathBuf,
    /// The device's number, or that of what lies in one.
    number: (u64, u64),
}

impl Spot {
    /// The spot that `path` leads to.
    pub fn of(path: &Path) -> io::Result<Spot> {
        let metadata = std::fs::metadata(path)?;
        let number = match metadata.file_type().is_block_device() {
            true => (metadata.rdev(), 0),
            false => (metadata.dev(), metadata.ino()),
        };
        Ok(Spot { path: path.canonicalize()?, number })
    }

    /// Whether one is the other, or lies in it.
    pub fn overlaps(&self, other: &Spot) -> bool {
        self.number == other.number || self.path.starts_with(&other.path) || other.path.starts_with(&self.path)
    }

    /// Whether `other` lies in this directory, or is it.
    pub fn holds(&self, other: &Path) -> bool {
        other.starts_with(&self.path)
    }
}

/// For each path, how many of them lie in the same file system: they share its room.
pub fn sharers(paths: &[PathBuf]) -> Vec<u64> {
    let device = |path: &PathBuf| std::fs::metadata(path).ok().map(|metadata| MetadataExt::dev(&metadata));
    let devices: Vec<_> = paths.iter().map(device).collect();
    devices.iter().map(|device| devices.iter().filter(|other| *other == device).count() as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spot_is_the_same_by_whatever_path_it_is_reached() {
        let place = std::env::temp_dir().join(format!("dazzle-spots-{}", std::process::id()));
        std::fs::create_dir_all(place.join("a/inner")).unwrap();
        std::fs::create_dir(place.join("ab")).unwrap();
        std::os::unix::fs::symlink(place.join("a"), place.join("link")).unwrap();
        std::fs::write(place.join("file"), "").unwrap();
        std::fs::hard_link(place.join("file"), place.join("other")).unwrap();
        let spot = |name: &str| Spot::of(&place.join(name)).unwrap();
        for (one, other) in [("a", "link"), ("a/inner", "link"), ("a", "ab/../a/inner"), ("file", "other")] {
            assert!(spot(one).overlaps(&spot(other)) && spot(other).overlaps(&spot(one)), "{one} and {other}");
        }
        assert!(!spot("a").overlaps(&spot("ab")) && !spot("a").overlaps(&spot("file")));
        assert!(Spot::of(&place.join("nothing")).is_err());
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn directories_that_were_made_in_vain_go_again_and_no_others() {
        let place = std::env::temp_dir().join(format!("dazzle-made-{}", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        let mut made = Made::default();
        made.make(&place.join("a/b")).unwrap();
        made.make(&place.join("c")).unwrap();
        made.make(&place).unwrap();
        std::fs::write(place.join("c/precious"), "").unwrap();
        std::fs::create_dir(place.join("old")).unwrap();
        std::fs::write(place.join("old/empty"), "").unwrap();
        made.watch(&place.join("old"));
        made.watch(&place.join("nothing"));
        std::fs::write(place.join("old/list.1"), "").unwrap();
        std::fs::write(place.join("old/strange"), "").unwrap();
        std::fs::write(place.join("old/target"), "x").unwrap();
        drop(made);
        assert!(place.exists() && !place.join("a").exists() && place.join("c/precious").exists());
        let left = ["empty", "list.1", "strange", "target"].map(|name| place.join("old").join(name).exists());
        assert_eq!(left, [true, false, true, true], "what was there, is not a target's, or holds something, stays");
        let mut made = Made::default();
        made.make(&place.join("a/b")).unwrap();
        made.keep();
        assert!(place.join("a/b").exists());
        std::fs::remove_dir_all(&place).unwrap();
    }
}
