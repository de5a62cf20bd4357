//! Rounds of confirmation that many share: whoever joins gets the outcome of a round that began after it came.

use std::sync::atomic::{AtomicU64, Ordering};

use async_lock::Mutex;

/// The rounds, one at a time.
pub(crate) struct Rounds {
    begun: AtomicU64,
    /// The outcome of the newest; held while one is under way.
    newest: Mutex<Result<(), String>>,
}

impl Default for Rounds {
    fn default() -> Self {
        Rounds { begun: AtomicU64::new(0), newest: Mutex::new(Ok(())) }
    }
}

impl Rounds {
    /// The outcome of a round that began after this was called: of another's, or of this one, which is `round`.
    pub async fn join(&self, round: impl AsyncFnOnce() -> Result<(), String>) -> Result<(), String> {
        let before = self.begun.load(Ordering::Acquire);
        let mut newest = self.newest.lock().await;
        if self.begun.load(Ordering::Acquire) == before {
            self.begun.store(before + 1, Ordering::Release);
            // Whoever is dropped meanwhile leaves no outcome for those that wait.
            *newest = Err("the round was given up".to_owned());
            *newest = round().await;
        }
        newest.clone()
    }
}
