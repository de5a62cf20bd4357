//! Reading all that can be had of one stripe, from all runs, for whoever has to write it again. This file awaits.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use futures_util::future::join_all;
use protocol::erasure::{Survivor, reconstruct};
use protocol::fragment::{Geometry, Part};
use protocol::id::{RunNumber, TargetId};
use protocol::storage::StoredFragment;

use crate::Cluster;
use crate::decode;
use crate::fetch::{Refusal, read_prefix};
use crate::image::Image;

/// What was read of one stripe.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// Its bytes.
    pub(crate) image: Image,
    /// Fragments of which not all bytes were given, or verify, by run and part.
    pub(crate) damaged: Vec<(RunNumber, Part, TargetId)>,
    /// Targets that did not answer, or could not read: of what they hold nobody knows anything now.
    pub(crate) silent: BTreeSet<TargetId>,
    /// Those of them that did not answer: what they hold may be as good as ever.
    pub(crate) unheard: BTreeSet<TargetId>,
}

/// A fragment as far as its checksums vouch for it.
struct Read<'a> {
    target: TargetId,
    fragment: &'a StoredFragment,
    bytes: Bytes,
}

/// Reads every fragment in `held`, which are of one stripe, and decodes what is missing.
pub(crate) async fn gather(cluster: &Cluster, held: &[(TargetId, StoredFragment)]) -> Gathered {
    let reads = join_all(held.iter().map(|(target, fragment)| async move {
        let bytes = read_prefix(cluster, *target, fragment.header.id, fragment.length).await;
        (*target, fragment, bytes)
    }))
    .await;
    let mut gathered = Gathered::default();
    let silent = reads.iter().filter(|(.., bytes)| bytes.is_err()).map(|(target, ..)| *target);
    gathered.silent = silent.collect();
    let unheard =
        reads.iter().filter(|(.., bytes)| matches!(bytes, Err(Refusal::Silent(_)))).map(|(target, ..)| *target);
    gathered.unheard = unheard.collect();
    let read = |(target, fragment, bytes): (_, _, Result<_, _>)| {
        let bytes = bytes.unwrap_or_default();
        Read { target, fragment, bytes }
    };
    let reads: Vec<Read<'_>> = reads.into_iter().map(read).collect();
    for read in &reads {
        let header = &read.fragment.header;
        if read.bytes.len() < read.fragment.length as usize {
            gathered.damaged.push((header.id.run, header.id.part, read.target));
        }
        if let Part::Data(index) | Part::Copy { of: index, .. } = header.id.part
            && index < header.geometry.data
        {
            gathered.image.add(u32::from(index) * header.geometry.fragment_size, &read.bytes);
        }
    }
    let shapes: std::collections::BTreeMap<RunNumber, Geometry> =
        reads.iter().map(|read| (read.fragment.header.id.run, read.fragment.header.geometry)).collect();
    for (run, geometry) in shapes {
        for wanted in 0..geometry.data {
            decode_missing(&mut gathered.image, held, &reads, (run, geometry), wanted);
        }
    }
    gathered
}

/// Decodes data fragment `wanted` of a run where parity says that there is more of it than was read.
fn decode_missing(
    image: &mut Image,
    held: &[(TargetId, StoredFragment)],
    reads: &[Read<'_>],
    (run, geometry): (RunNumber, Geometry),
    wanted: u8,
) {
    let lengths = reads
        .iter()
        .filter(|read| read.fragment.header.id.run == run)
        .filter_map(|read| read.fragment.header.data_lengths.get(usize::from(wanted)).copied());
    let mut ends: Vec<u32> = lengths.filter(|&end| end <= geometry.fragment_size).collect();
    ends.sort_unstable();
    ends.dedup();
    let start = u32::from(wanted) * geometry.fragment_size;
    for end in ends {
        if image.has(&(start..start + end)) {
            continue;
        }
        for plan in decode::plans(held, (run, geometry), wanted, &(0..end)) {
            let survivors = survivors(reads, (run, geometry), &plan);
            if survivors.len() == usize::from(geometry.data) {
                let bytes = reconstruct(geometry.data, wanted, &survivors, end as usize);
                image.add(start, &bytes);
                break;
            }
        }
    }
}

/// The fragments of a plan that were read as far as they count: k of them, or fewer if there are not enough.
fn survivors<'a>(
    reads: &'a [Read<'_>],
    (run, geometry): (RunNumber, Geometry),
    plan: &decode::Plan,
) -> Vec<Survivor<'a>> {
    let find = |part: Part, target: Option<TargetId>| {
        let same = |read: &&Read<'_>| {
            let id = read.fragment.header.id;
            id.run == run && id.part == part && target.is_none_or(|target| target == read.target)
        };
        reads.iter().find(same)
    };
    let cut = |index: u8, range: &Range<u32>| {
        if range.is_empty() {
            return Some(Survivor { index, bytes: &[] });
        }
        let bytes = find(Part::Data(index), None)?.bytes.get(range.start as usize..range.end as usize)?;
        Some(Survivor { index, bytes })
    };
    let data = plan.data.iter().filter_map(|(index, range)| cut(*index, range));
    let parity = plan.parity.iter().filter_map(|&(at, target)| {
        let read = find(Part::Parity(at), Some(target))?;
        let whole = read.bytes.len() == read.fragment.length as usize;
        whole.then_some(Survivor { index: geometry.data + at, bytes: &read.bytes })
    });
    data.chain(parity).take(usize::from(geometry.data)).collect()
}
