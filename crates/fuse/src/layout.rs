//! How a kernel structure becomes bytes and back, without `unsafe` and without alignment rules.
//!
//! The kernel's structures are packed by hand (`include/uapi/linux/fuse.h`: every field on its natural boundary,
//! padding spelled out), so a structure is just its fields, one after another, in the machine's own byte order.
//! `structures!` declares one from the list of its fields and from its size in the header; a list that does not add up
//! to that size does not compile.

/// Something with a fixed size in bytes on the FUSE device.
pub(crate) trait Layout: Sized {
    /// Its size in bytes.
    const SIZE: usize;

    /// Takes it off the front of `bytes`; `None` if there are too few.
    fn take(bytes: &mut &[u8]) -> Option<Self>;

    /// Appends it to `out`.
    fn put(&self, out: &mut Vec<u8>);
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Layout for $integer {
            const SIZE: usize = size_of::<$integer>();

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let (first, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(<$integer>::from_ne_bytes(*first))
            }

            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

integers!(u16, u32, u64, i32, i64);

impl<T: Layout + Copy + Default, const N: usize> Layout for [T; N] {
    const SIZE: usize = N * T::SIZE;

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let mut items = [T::default(); N];
        for item in &mut items {
            *item = T::take(bytes)?;
        }
        Some(items)
    }

    fn put(&self, out: &mut Vec<u8>) {
        for item in self {
            item.put(out);
        }
    }
}

/// Declares kernel structures: name, size in bytes according to the header, fields in order.
macro_rules! structures {
    ($( $(#[$attribute:meta])* $name:ident ($size:literal) { $( $field:ident : $kind:ty ),* $(,)? } )*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $name {
            $( pub(crate) $field: $kind, )*
        }

        impl $crate::layout::Layout for $name {
            const SIZE: usize = 0 $( + <$kind as $crate::layout::Layout>::SIZE )*;

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                // Fields of a literal are evaluated in the order written: the order on the wire.
                Some(Self { $( $field: $crate::layout::Layout::take(bytes)?, )* })
            }

            fn put(&self, out: &mut Vec<u8>) {
                $( $crate::layout::Layout::put(&self.$field, out); )*
            }
        }

        const _: () = assert!(<$name as $crate::layout::Layout>::SIZE == $size);
    )*};
}

pub(crate) use structures;
