//! POSIX access control lists as extended attributes (POSIX.1e draft 17; Linux `fs/posix_acl.c` for the byte form).
//!
//! The value is a version, 2, and entries of tag, permission bits and id, all little endian.

/// The attribute that holds the list that is checked.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory that holds what is made in it begins with.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJECT: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJECT: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const ENTRY_SIZE: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A list that has each of the entries that a file mode stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// Reads an attribute's value. `None` when it is no valid list.
    pub(crate) fn decode(value: &[u8]) -> Option<Acl> {
        let (version, rest) = value.split_first_chunk::<4>()?;
        let (entries, tail) = rest.as_chunks::<ENTRY_SIZE>();
        if u32::from_le_bytes(*version) != VERSION || !tail.is_empty() {
            return None;
        }
        let entry = |bytes: &[u8; ENTRY_SIZE]| Entry {
            tag: u16::from_le_bytes([bytes[0], bytes[1]]),
            permissions: u16::from_le_bytes([bytes[2], bytes[3]]),
            id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        };
        let acl = Acl(entries.iter().map(entry).collect());
        acl.valid().then_some(acl)
    }

    /// The attribute's value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend_from_slice(&entry.tag.to_le_bytes());
            value.extend_from_slice(&entry.permissions.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    /// Whether it says no more than a file mode can.
    pub(crate) fn is_mode(&self) -> bool {
        self.0.iter().all(|entry| [USER_OBJECT, GROUP_OBJECT, OTHER].contains(&entry.tag))
    }

    /// The nine permission bits that stand for it.
    pub(crate) fn mode(&self) -> u16 {
        let of = |tag| self.0.iter().find(|entry| entry.tag == tag).map_or(0, |entry| entry.permissions);
        let group = if self.has(MASK) { of(MASK) } else { of(GROUP_OBJECT) };
        (of(USER_OBJECT) << 6) | (group << 3) | of(OTHER)
    }

    /// `chmod`: the bits go where they stand for something.
    pub(crate) fn set_mode(&mut self, mode: u16) {
        self.each_class(|permissions, bits| *permissions = bits, mode);
    }

    /// What something new begins with under this default list, and its mode: no more than was asked for.
    pub(crate) fn inherit(&self, mode: u16) -> (Acl, u16) {
        let mut acl = self.clone();
        acl.each_class(|permissions, bits| *permissions &= bits, mode);
        let mode = (mode & !0o777) | (mode & acl.mode());
        (acl, mode)
    }

    fn each_class(&mut self, set: impl Fn(&mut u16, u16), mode: u16) {
        let group = if self.has(MASK) { MASK } else { GROUP_OBJECT };
        for entry in &mut self.0 {
            let shift = match entry.tag {
                USER_OBJECT => 6,
                OTHER => 0,
                tag if tag == group => 3,
                _ => continue,
            };
            set(&mut entry.permissions, (mode >> shift) & 7);
        }
    }

    fn has(&self, tag: u16) -> bool {
        self.0.iter().any(|entry| entry.tag == tag)
    }

    fn valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let known = [USER_OBJECT, USER, GROUP_OBJECT, GROUP, MASK, OTHER];
        let sound = self.0.iter().all(|entry| known.contains(&entry.tag) && entry.permissions <= 7);
        let named = count(USER) + count(GROUP) > 0;
        let once = [USER_OBJECT, GROUP_OBJECT, OTHER].iter().all(|&tag| count(tag) == 1);
        sound && once && count(MASK) <= 1 && (!named || count(MASK) == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, permissions, id)| Entry { tag, permissions, id }).collect())
    }

    #[test]
    fn a_default_list_takes_the_place_of_the_mask() {
        let default = acl(&[(USER_OBJECT, 7, 0), (USER, 6, 5), (GROUP_OBJECT, 5, 0), (MASK, 7, 0), (OTHER, 0, 0)]);
        assert_eq!(Acl::decode(&default.encode()), Some(default.clone()));
        let (inherited, mode) = default.inherit(0o2666);
        assert_eq!(mode, 0o2660);
        assert_eq!(inherited.mode(), 0o660);
        assert!(!inherited.is_mode());
        let mut changed = inherited;
        changed.set_mode(0o640);
        assert_eq!(changed.mode(), 0o640);
    }

    #[test]
    fn rubbish_is_no_list() {
        let good = acl(&[(USER_OBJECT, 7, 0), (GROUP_OBJECT, 5, 0), (OTHER, 0, 0)]);
        assert!(good.is_mode());
        for end in 0..good.encode().len() {
            assert_eq!(Acl::decode(&good.encode()[..end]), None);
        }
        let without_mask = acl(&[(USER_OBJECT, 7, 0), (USER, 7, 1), (GROUP_OBJECT, 5, 0), (OTHER, 0, 0)]);
        assert_eq!(Acl::decode(&without_mask.encode()), None);
    }
}
