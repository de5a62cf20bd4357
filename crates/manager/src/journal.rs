//! The body of a journal record: the changes of one operation (`docs/format-slot.md`).

use protocol::id::{SLOT_COUNT, SlotId};

use crate::encoding::{Cursor, Damaged, VERSION, put_varint};
use crate::transaction::Changes;

/// The changes of one operation, over all its slots.
pub(crate) fn encode(changes: &[(SlotId, Changes)]) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    body.push(VERSION);
    for (slot, changes) in changes {
        for (key, value) in changes {
            body.extend_from_slice(&slot.0.to_le_bytes());
            put_varint(&mut body, key.len() as u64);
            body.extend_from_slice(key);
            put_varint(&mut body, value.as_ref().map_or(0, |value| value.len() as u64 + 1));
            body.extend_from_slice(value.as_deref().unwrap_or_default());
        }
    }
    body
}

/// One change, as it lies in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change<'a> {
    pub(crate) slot: SlotId,
    pub(crate) key: &'a [u8],
    pub(crate) value: Option<&'a [u8]>,
}

/// The changes that a body holds, in their order.
pub(crate) fn decode(body: &[u8]) -> Result<Vec<Change<'_>>, Damaged> {
    let mut cursor = Cursor::new(body, "journal record")?;
    let mut changes = Vec::new();
    while !cursor.is_empty() {
        let slot = cursor.u16()?;
        if slot >= SLOT_COUNT {
            return Err(Damaged("slot in a journal record"));
        }
        let key = cursor.run()?;
        if key.len() > usize::from(u16::MAX) {
            return Err(Damaged("key in a journal record"));
        }
        let value = match cursor.varint()? {
            0 => None,
            length => Some(cursor.take(usize::try_from(length - 1).map_err(|_| Damaged("journal record"))?)?),
        };
        changes.push(Change { slot: SlotId(slot), key, value });
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_back_and_rubbish_never_panics() {
        let first = Changes::from([(vec![1, 2], Some(vec![])), (vec![3], None)]);
        let second = Changes::from([(vec![9; 300], Some(vec![7; 1000]))]);
        let body = encode(&[(SlotId(0), first), (SlotId(4095), second)]);
        let changes = decode(&body).unwrap();
        assert_eq!(changes.len(), 3);
        assert_eq!(changes[0], Change { slot: SlotId(0), key: &[1, 2], value: Some(&[]) });
        assert_eq!(changes[1], Change { slot: SlotId(0), key: &[3], value: None });
        for at in 0..body.len() {
            let _ = decode(&body[..at]);
            let mut bad = body.clone();
            bad[at] ^= 0xff;
            let _ = decode(&bad);
        }
    }
}
