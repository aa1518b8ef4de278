//! The benchmarks: locks, timers and the watchdog, each beside a floor and peers, and fenced writes
//! beside plain ones.
//!
//! The programs are in `bin`, and the criterion benchmarks in the folder `benches`. `README.md`
//! lists the command for each figure.

#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a benchmark that cannot measure ends, with a message that says what went wrong"
)]

mod fence;
mod harness;
mod lock;
mod overview;
mod timer;
mod watchdog;

pub use fence::{
    FenceFolder, file_writes, postgres_transactions, postgres_updates,
    prepared_postgres_transactions, redis_writes, sqlite_transactions, tokens,
};
pub use harness::{
    Contender, ContenderSummary, describe_with_server, measure_in_turn, now, pin, table,
};
pub use lock::{
    CACHE_PROCESS, Cause, HELD_PROCESS, ManyThreads, RedServers, RequestKeys, behind_sentinels,
    cache_process, cache_report, failovers, fair_queues, hand_overs, held_process, in_a_cluster,
    lock_kinds, lock_unlocks, many_report, red_locks, redisson_hand_over, request_keys,
    slow_hand_overs, slow_lock_unlocks, threads_report,
};
pub use overview::overview;
pub use timer::{
    ClockAndLock, CrossbeamAfter, OrderedMap, StoppableBatch, StoppableBoxed, StoppableTimer,
    timer_report,
};
pub use watchdog::{RenewalRounds, watchdog_report};
