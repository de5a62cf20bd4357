//! Telling the kernel of a mount something unasked, and seeing whether it waits for a locked page meanwhile.
//!
//! The write to the device returns when the kernel has carried out what it was told. Where that takes long the thread was not
//! scheduled, or it sleeps in the kernel until somebody unlocks a page; who waits for it may wait in vain then. So it is looked
//! at: a thread that sleeps uninterruptibly, and has slept on since the last look, waits for a page.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use fuse::Told;
use host::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::warn;

/// How often it is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Does `work`, which writes to the device, on a thread that serves no call.
pub fn tell(runtime: &Handle, work: impl FnOnce() + Send + 'static) -> BoxFuture<'static, Told> {
    let thread = Arc::new(AtomicI32::new(0));
    let own = thread.clone();
    let telling = runtime.spawn_blocking(move || {
        own.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
        work();
        own.store(0, Ordering::Release);
    });
    progress(telling, thread)
}

fn progress(mut telling: JoinHandle<()>, thread: Arc<AtomicI32>) -> BoxFuture<'static, Told> {
    Box::pin(async move {
        let mut asleep = None;
        loop {
            if let Ok(told) = tokio::time::timeout(LOOK_AGAIN, &mut telling).await {
                if told.is_err() {
                    warn!("the thread that tells the kernel what to forget panicked");
                }
                return Told::Done;
            }
            let before = std::mem::replace(&mut asleep, sleep_of(thread.load(Ordering::Acquire)));
            if asleep.is_some() && asleep == before {
                return Told::Waits(progress(telling, thread));
            }
        }
    })
}

/// Which of its sleeps a thread of this process sleeps uninterruptibly, if it does.
fn sleep_of(thread: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let field = |name: &str| Some(status.lines().find_map(|line| line.strip_prefix(name))?.trim());
    let sleeps = field("State:")?.starts_with('D');
    sleeps.then(|| field("voluntary_ctxt_switches:")?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_thread_that_only_takes_its_time_is_waited_for() {
        let (started, go_on) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel::<()>());
        let mut told = tell(&Handle::current(), move || {
            started.0.send(()).expect("the test waits");
            // Asleep, but not in the way of one who waits for a page.
            let _ = go_on.1.recv();
        });
        tokio::task::spawn_blocking(move || started.1.recv()).await.expect("it runs").expect("it starts");
        assert!(tokio::time::timeout(LOOK_AGAIN * 20, &mut told).await.is_err());
        drop(go_on.0);
        assert!(matches!(told.await, Told::Done));
    }
}
