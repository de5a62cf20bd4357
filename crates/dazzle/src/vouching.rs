//! The word that this daemon gives its guard again and again: that it runs, and takes care of what its kernel has in memory
//! until others may have what this machine had (`docs/decisions/0048`).

use std::sync::Arc;
use std::time::Duration;

use crate::edge::fuse_device::Mount;
use crate::edge::word::Tick;
use crate::node::Parts;

/// How often it is given.
const GIVE_AGAIN: Duration = Duration::from_millis(100);
/// A daemon that is so late hangs, or was stopped.
const LATE: Duration = Duration::from_millis(500);
/// The guard of one that does not run begins so long before the lease runs out: it has to look at all that runs on the machine.
const AHEAD: Duration = Duration::from_millis(500);

/// Gives it for as long as there is the mount.
pub(crate) async fn vouch(parts: Arc<Parts>, mount: Arc<Mount>) {
    while !mount.has_ended() {
        // First: whatever time passes between the two makes it hold for less long.
        let now = Tick::now();
        mount.vouch(now, vouched(parts.roles.cluster.trusted_for()));
        parts.roles.cluster.host().sleep(GIVE_AGAIN).await;
    }
}

/// For how long it holds, where nobody else can be given what is ours for so long. A daemon that runs is not hurried.
fn vouched(trusted: Duration) -> Duration {
    trusted.saturating_sub(AHEAD).max(LATE).min(trusted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_never_outlasts_the_lease_and_ends_before_it_where_the_daemon_stopped() {
        let milliseconds = Duration::from_millis;
        assert_eq!(vouched(milliseconds(2940)), milliseconds(2440));
        assert_eq!(vouched(milliseconds(700)), LATE, "one that runs gives it anew by then");
        assert_eq!(vouched(milliseconds(300)), milliseconds(300));
        assert_eq!(vouched(Duration::ZERO), Duration::ZERO);
        assert!(vouched(Duration::MAX) > Duration::from_secs(1 << 40), "where there is nobody else");
    }
}
