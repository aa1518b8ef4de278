//! What the public types promise: threads, unwinding, causes, and one short line of `Debug`.

use std::error::Error;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use hashed_wheel::{
    BatchTimer, BuildError, HashedWheelTimer, Histogram, Key, ManualClock, MissedRuns, Parker,
    Period, PeriodicTimeout, ScheduleError, Statistics, StopError, Summary, SystemClock, Timeout,
    TimerBuilder, TimerKey, Unprocessed, WeakBatchTimer, WeakTimer, Wheel,
};

#[test]
fn handles_and_builders_are_send_sync_and_unwind_safe() {
    fn holds<T: Send + Sync + UnwindSafe + RefUnwindSafe>() {}
    holds::<HashedWheelTimer>();
    holds::<BatchTimer<Box<dyn FnMut() + Send>>>();
    holds::<WeakTimer>();
    holds::<WeakBatchTimer<Box<dyn FnMut() + Send>>>();
    holds::<TimerBuilder>();
    holds::<Timeout>();
    holds::<PeriodicTimeout>();
    holds::<TimerKey>();
    holds::<ManualClock>();
    holds::<SystemClock>();
    holds::<Parker>();
    holds::<Period>();
    holds::<MissedRuns>();
    holds::<Histogram>();
    holds::<Summary>();
    holds::<Statistics>();
    holds::<StopError>();
    holds::<Wheel<u64>>();
    holds::<Key>();
}

#[test]
fn errors_and_unprocessed_tasks_can_be_passed_between_threads() {
    fn holds<T: Send + Sync>() {}
    holds::<BuildError>();
    holds::<ScheduleError<u64>>();
    holds::<ScheduleError<hashed_wheel::Task>>();
    holds::<Unprocessed<hashed_wheel::Task>>();
}

#[test]
fn errors_keep_their_cause() {
    let refused = || io::Error::from(io::ErrorKind::WouldBlock);
    let kind = |error: &dyn Error| {
        error.source().and_then(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind)
    };
    assert_eq!(kind(&BuildError::ThreadSpawn(refused())), Some(io::ErrorKind::WouldBlock));
    assert_eq!(kind(&BuildError::MaxPendingTimeouts), None);
    assert_eq!(kind(&ScheduleError::Full(7)), None);
}

#[test]
fn debug_is_one_short_line() {
    let builder = HashedWheelTimer::builder();
    let batches = builder.clone().build_batch(|_: &mut Vec<u32>| {}).unwrap();
    let timer = builder.clone().build().unwrap();
    let hour = Duration::from_secs(3600);
    let timeout = timer.schedule(hour, || {}).unwrap();
    let periodic = timer.schedule_periodic(hour, Period::fixed_rate(hour), || {}).unwrap();
    for number in 0..1000 {
        batches.schedule(hour, number).unwrap();
        timer.schedule(hour, || {}).unwrap();
    }
    for shown in [
        format!("{timer:?}"),
        format!("{batches:?}"),
        format!("{timeout:?}"),
        format!("{periodic:?}"),
        format!("{:?}", ManualClock::new()),
        format!("{:?}", Parker::new()),
        format!("{:?}", Histogram::new()),
        format!("{:?}", timer.stop().unwrap().first().unwrap()),
    ] {
        assert!(!shown.contains('\n') && shown.len() <= 120, "{shown}");
    }
}
