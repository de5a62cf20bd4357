//! Attempts at going on without the targets that failed, and who is told of the vain ones.
//!
//! # Invariants
//! 1. Nobody is told of an attempt that began before he asked: what did not answer then may answer now.
//! 2. Whoever waits is told of the first vain attempt that began after he asked, and whoever asks next has another begun.

use crate::LogError;

/// Since which attempt somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since(u64);

#[derive(Debug, Default)]
pub(crate) struct Attempts {
    begun: u64,
    /// The newest one that was vain, and why, if none has succeeded since.
    vain: Option<(u64, LogError)>,
    /// No other begins until somebody asks.
    rests: bool,
}

impl Attempts {
    pub(crate) fn may_begin(&self) -> bool {
        !self.rests
    }

    pub(crate) fn begin(&mut self) {
        assert!(self.may_begin(), "somebody asked");
        self.begun += 1;
    }

    pub(crate) fn succeeded(&mut self) {
        self.vain = None;
    }

    pub(crate) fn was_vain(&mut self, why: LogError) {
        assert!(self.begun > 0, "it was begun");
        self.vain = Some((self.begun, why));
        self.rests = true;
    }

    /// Another may begin.
    pub(crate) fn ask(&mut self) -> Since {
        self.rests = false;
        Since(self.begun)
    }

    /// What is known to somebody who waits. If it is nothing, another may begin.
    pub(crate) fn outcome(&mut self, since: Since) -> Result<(), LogError> {
        match &self.vain {
            Some((number, why)) if *number > since.0 => Err(why.clone()),
            _ => {
                self.rests = false;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why() -> LogError {
        LogError::Unavailable("only 0 targets answer".into())
    }

    #[test]
    fn who_waits_is_told_and_who_asks_next_has_another_begun() {
        let mut attempts = Attempts::default();
        let first = attempts.ask();
        attempts.begin();
        attempts.was_vain(why());
        assert!(!attempts.may_begin(), "nobody has asked since");
        assert_eq!(attempts.outcome(first), Err(why()));
        let next = attempts.ask();
        assert!(attempts.may_begin());
        assert_eq!(attempts.outcome(first), Err(why()), "the first is told, though another asked before he looked");
        attempts.begin();
        assert_eq!(attempts.outcome(next), Ok(()), "it is not known yet");
        attempts.succeeded();
        assert_eq!(attempts.outcome(next), Ok(()));
    }

    #[test]
    fn nobody_is_told_of_an_attempt_that_began_before_he_asked() {
        let mut attempts = Attempts::default();
        let first = attempts.ask();
        attempts.begin();
        let late = attempts.ask();
        attempts.was_vain(why());
        assert_eq!(attempts.outcome(first), Err(why()));
        assert!(!attempts.may_begin());
        assert_eq!(attempts.outcome(late), Ok(()));
        assert!(attempts.may_begin(), "an own one of him who came late");
        attempts.begin();
        attempts.was_vain(why());
        assert_eq!(attempts.outcome(late), Err(why()));
    }
}
