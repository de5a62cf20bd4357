//! Seconds since 1970 as people read them.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// A second, in universal time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date(pub u64);

impl Date {
    /// By this machine's clock.
    pub fn now() -> Date {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Date(since.map_or(0, |since| since.as_secs()))
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / 86_400, self.0 % 86_400);
        // Years are counted from the first of March, so that the leap day is the last; eras are of 400 years
        // (Hinnant, "chrono-compatible low-level date algorithms", civil_from_days).
        let shifted = days + 719_468;
        let (era, of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + u64::from(month <= 2);
        write!(f, "{year}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let shown = [0, 951_782_399, 951_782_400, 1_795_256_100].map(|second| Date(second).to_string());
        assert_eq!(
            shown,
            ["1970-01-01 00:00 UTC", "2000-02-28 23:59 UTC", "2000-02-29 00:00 UTC", "2026-11-21 10:15 UTC"]
        );
    }
}
