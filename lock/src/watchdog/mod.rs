//! The watchdog renews holds in time, detects losses, and sends the releases without a waiting
//! caller.
//!
//! Every hold is on a timing wheel, at its next renewal or at the end of its validity. The ticker
//! of the wheel never touches a socket. The ticker hands a due renewal to the renewal thread of the
//! hold's server, and moves the hold to the end of its validity on the wheel. So a loss is reported
//! within a tick, even while a renewal hangs. Each server has its own renewal thread, so a hanging
//! server delays no other server. A renewal thread sends renewals in scripts of many keys, several
//! in flight, and then the queued releases.
//!
//! The rules are pure, with time as an argument: `renewal_schedule`, `batch`, `rtt` and
//! `clock_jump`, and the ledger of the releases. `watchdog` puts the parts with state together;
//! `endings` ends holds and `settle` handles replies to releases, on any thread. The rest runs on
//! the ticker (`ticker`) and on the renewal threads (`worker_thread`, `renewal_pass`,
//! `release_sender`).

pub(crate) mod client_record_writer;
pub(crate) mod clock_jump;
pub(crate) mod context;
pub(crate) mod dispatch;
pub(crate) mod endings;
pub(crate) mod failover;
pub(crate) mod release_sender;
pub(crate) mod renewal_batch;
pub(crate) mod renewal_pass;
pub(crate) mod renewal_schedule;
pub(crate) mod rtt;
pub(crate) mod scheduler;
pub(crate) mod server_check;
pub(crate) mod settle;
pub(crate) mod shared_ledger;
pub(crate) mod ticker;
pub(crate) mod watchdog;
pub(crate) mod worker;
pub(crate) mod worker_thread;
pub(crate) mod workers;

pub(crate) use context::ClientDescription;
pub(crate) use settle::SendLimit;
pub(crate) use shared_ledger::{CancellableRelease, SharedLedger};
pub(crate) use watchdog::Watchdog;
