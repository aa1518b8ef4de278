//! What the benchmarks share: the floors, the peers, and the measuring of several contenders in turn.
//!
//! The benchmarks themselves are in the folder `benches`; `README.md` says how each figure is reproduced.

#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a benchmark that cannot measure ends, with a message that says what went wrong"
)]

mod clock;
mod contender;
mod endpoints;
mod fair_line;
mod family;
mod figures;
mod hand_over;
mod line_plot;
mod lock_unlock;
mod machine;
mod maven;
mod plot;
mod process;
mod raw;
mod red_lock;
mod redisson_hand_over;
mod renewing;
mod rounds;
mod timers;
mod timing;

pub use clock::{now, pause};
pub use contender::Contender;
pub use endpoints::{CLUSTER, DIRECT, End, SENTINEL, behind_sentinels, failovers, in_a_cluster};
pub use fair_line::{ONE, THOUSAND, fair_lines};
pub use family::{Family, family};
pub use hand_over::{CLIENTS, RAW_CHAIN, RLOCK_POLLING, hand_overs, slow_hand_overs};
pub use lock_unlock::{TWO_EVALSHA, WATCHED, lock_unlocks, slow_lock_unlocks};
pub use machine::{describe, pin};
pub use raw::RawLock;
pub use red_lock::{FIVE, RAW_FAN_OUT, RedServers, red_locks};
pub use redisson_hand_over::{REDISSON, redisson_hand_over};
pub use renewing::{Sweeps, keep_one, watchdog_report};
pub use rounds::{Figures, measure_in_turn, table};
pub use timers::{After, Batch, Boxed, Floor, OrderedMap, Timer};
pub use timing::{measure_one, timer_report};
