//! What programs have mapped of files of one mount, and taking it out of memory: the next access asks the daemon. A page that
//! several programs have mapped, or that was changed through a mapping and is not stored yet, the kernel leaves where it is.

use std::os::fd::{AsRawFd, OwnedFd};

/// The kernel takes no more pieces at once.
const PIECES_MAX: usize = 1024;

/// Where processes have files of one file system mapped, as the kernel numbers it there.
pub struct Mapped(String);

impl Mapped {
    /// Of the file system with this number, as in `0:51`.
    pub fn new(device: &str) -> Option<Mapped> {
        let (major, minor) = device.split_once(':')?;
        let (major, minor) = (major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?);
        Some(Mapped(format!("{major:02x}:{minor:02x}")))
    }

    /// Takes out of memory what the process has mapped. Its number must be its own as long as the descriptor says so.
    pub fn page_out(&self, number: i32, process: &OwnedFd) {
        let maps = std::fs::read_to_string(format!("/proc/{number}/maps")).unwrap_or_default();
        let pieces: Vec<libc::iovec> = maps.lines().filter_map(|line| self.piece(line)).collect();
        for pieces in pieces.chunks(PIECES_MAX) {
            // SAFETY: the kernel reads as many pieces as are there, and takes them for addresses in the other process, of which
            // no content is changed: what is taken out of memory is read again from the file.
            let _ = unsafe {
                let (first, count) = (pieces.as_ptr(), pieces.len());
                libc::syscall(libc::SYS_process_madvise, process.as_raw_fd(), first, count, libc::MADV_PAGEOUT, 0)
            };
        }
    }

    /// What a line of `/proc/PID/maps` tells, if it tells of one of these files.
    fn piece(&self, line: &str) -> Option<libc::iovec> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        // Behind how it may be used, and from where in the file.
        let lies_there = fields.nth(2)? == self.0;
        lies_there.then(|| libc::iovec { iov_base: start as *mut libc::c_void, iov_len: end - start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_the_file_system_is_taken_out() {
        let mapped = Mapped::new("0:51").unwrap();
        let of = |line| mapped.piece(line).map(|piece| (piece.iov_base as usize, piece.iov_len));
        assert_eq!(of("7f10-7f30 r--s 00000000 00:33 17   /mnt/a file"), Some((0x7f10, 0x20)));
        assert_eq!(of("7f10-7f30 r--s 00000000 08:33 17   /mnt/a file"), None);
        assert_eq!(of("7ffc1000-7ffc3000 rw-p 00000000 00:00 0          [stack]"), None);
        assert_eq!(of("7ffc"), None);
        assert!(Mapped::new("nothing").is_none());
    }
}
