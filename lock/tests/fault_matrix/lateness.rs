//! How late the machine runs the threads of this process.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{pause, timed};

/// How long each pause is meant to be.
const PAUSE: Duration = Duration::from_millis(10);

/// A pause that ends no later than this is on time.
const ON_TIME: Duration = Duration::from_millis(10);

/// By how much all pauses of a thread ended late, in ns.
static LATENESS: LazyLock<&AtomicU64> = LazyLock::new(|| {
    static TOTAL: AtomicU64 = AtomicU64::new(0);
    let measure = || loop {
        let ((), took) = timed(|| pause(PAUSE));
        if took > PAUSE + ON_TIME {
            let late = u64::try_from(took.saturating_sub(PAUSE).as_nanos()).unwrap_or(u64::MAX);
            TOTAL.fetch_add(late, Ordering::Relaxed);
        }
    };
    thread::Builder::new().name("lateness".to_owned()).spawn(measure).unwrap();
    &TOTAL
});

/// The lateness so far. The difference of two values tells for how long the process stood still.
pub(crate) fn lateness() -> Duration {
    Duration::from_nanos(LATENESS.load(Ordering::Relaxed))
}
