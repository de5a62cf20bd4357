//! How fast bytes move: what targets read and wrote over the last moments, for `dazzle status`. Decides, never awaits.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use host::Moment;

/// Rates are means over about so long.
const SPAN: Duration = Duration::from_secs(5);

/// Bytes read and written in all, at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Traffic {
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
}

/// What moved of late.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<VecDeque<(Moment, Traffic)>>);

impl Meter {
    /// Notes how much has moved in all.
    pub(crate) fn note(&self, now: Moment, total: Traffic) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push_back((now, total));
        while notes.len() > 2 && notes[1].0 + SPAN <= now {
            notes.pop_front();
        }
    }

    /// Bytes a second, as the notes tell.
    pub(crate) fn rates(&self) -> Traffic {
        let notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some((from, first)), Some((until, last))) = (notes.front(), notes.back()) else {
            return Traffic::default();
        };
        let seconds = (*until - *from).as_secs_f64();
        // A target that was opened anew counts from zero.
        let rate = |first: u64, last: u64| {
            if seconds > 0.0 { (last.saturating_sub(first) as f64 / seconds) as u64 } else { 0 }
        };
        Traffic {
            bytes_read: rate(first.bytes_read, last.bytes_read),
            bytes_written: rate(first.bytes_written, last.bytes_written),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_seconds() {
        let meter = Meter::default();
        assert_eq!(meter.rates(), Traffic::default());
        let start = Moment::default();
        for second in 0..20_u64 {
            // It wrote at first, and reads of late.
            let total = Traffic { bytes_read: second.saturating_sub(10) * 7, bytes_written: second.min(10) * 100 };
            meter.note(start + Duration::from_secs(second), total);
        }
        assert_eq!(meter.rates(), Traffic { bytes_read: 7, bytes_written: 0 });
    }
}
