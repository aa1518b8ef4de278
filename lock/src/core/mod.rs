//! One client in one process: its store, watchdog, events and waiting threads, put together, and
//! the two paths of every lock. Begin with `acquire` and `release`.
//!
//! # An acquire
//!
//! `Lock::lock`, uncontended, in the order in which the steps run. Steps 4 to 8 are one call of
//! `LockTry::ask`.
//!
//! 1. `locks/lock.rs` turns the arguments into a `WaitSpec` (`model/wait.rs`), and in the end the
//!    result into a guard of the lock's type (`locks/guard.rs`).
//! 2. `core/acquire.rs` makes `AcquireParameters` of the settings (`core/spec.rs`), and searches
//!    `hold/registry.rs` for a hold of this thread or named owner, which the acquire would
//!    re-enter. Otherwise the function makes a `LockTry` with a new owner (`model/owner.rs`).
//! 3. `core/tries.rs`: `wait_for` is the loop of every wait. No other thread of this client waits
//!    for the name, so `core/wait.rs` says to try at once.
//! 4. `ops/by_kind.rs` selects the operation of the lock's kind, here `ops/acquire.rs`.
//! 5. `core/client_core.rs` and `store/retry.rs` send the operation until it is answered or the
//!    time is over. `store/store.rs` selects memory, the server or the cluster.
//! 6. `store/redis/node/node.rs` encodes the operation with a not-after (`node/request.rs`,
//!    `resp/encode.rs`). `node/call_pool.rs` takes an idle connection (`node/pool.rs`), writes, and
//!    reads until the reply is complete (`node/call_connection.rs`, `net/connection.rs`,
//!    `resp/decode.rs`), within the deadline.
//! 7. `node/request.rs` classifies the reply, and the operation decodes it.
//! 8. The server has granted the lock: a `Hold` (`hold/hold.rs`) enters the registry and
//!    `watchdog/watchdog.rs`, whose `scheduler.rs` puts the hold on the wheel at a time that
//!    `renewal_schedule.rs` selects. `core/raw_guard.rs` is the body of the guard that the caller
//!    gets.
//!
//! # A wait
//!
//! If another thread of this client waits for the name or holds the lock, or the try was refused:
//!
//! 1. `core/wait.rs` joins the queue of the lock's channel (`waits/registry.rs`). `waits/queue.rs`
//!    decides which thread tries.
//! 2. If another thread of this client holds the lock, the thread parks, and usually receives the
//!    hold by a hand-over (`waits/hand_over.rs`).
//! 3. Otherwise the first thread of the queue takes the steps 4 to 8 of an acquire. If the server
//!    refuses, `core/wait.rs` subscribes, tries again once the subscription is confirmed, and parks
//!    the thread. All other threads sleep.
//! 4. A message unparks the first thread: `store/redis/node/subscriber.rs` reads the message, and
//!    `waits/registry.rs` passes the wake to the queue.
//!
//! # A renewal
//!
//! 1. `watchdog/ticker.rs`: the ticker of the wheel returns holds that are due. Each valid hold
//!    goes back on the wheel at the end of its validity (`scheduler.rs`).
//! 2. `watchdog/dispatch.rs` passes the holds to the renewal thread of their server
//!    (`watchdog/workers.rs`, `worker.rs`).
//! 3. `watchdog/worker_thread.rs` is one pass of the worker's thread. `renewal_batch.rs` cuts the
//!    due holds into scripts.
//! 4. `watchdog/renewal_pass.rs` sends the scripts through `store/store.rs`;
//!    `store/redis/node/pipeline.rs` keeps several scripts in flight.
//! 5. `watchdog/renewal_pass.rs`: each reply extends the validity of its hold (`hold/hold.rs`) and
//!    schedules the next renewal, or ends the hold as lost (`endings.rs`, `events/dispatcher.rs`).
//! 6. `watchdog/worker_thread.rs` then sends the queued releases (`release_sender.rs`).
//!
//! # An unlock and a drop
//!
//! 1. `locks/guard.rs` has `unlock`; the drop of every guard is in `core/raw_guard.rs`.
//! 2. `hand_over_or_begin` in `core/raw_guard.rs`: if possible, `hand_over` in `core/release.rs`
//!    and `waits/hand_over.rs` give the hold to the first waiter, and nothing else happens.
//!    Otherwise `core/release.rs` counts the guard off the hold (`hold/hold.rs`). After the last
//!    guard, the release enters the ledger (`watchdog/shared_ledger.rs`, `ledger/ledger.rs`), and
//!    `watchdog/endings.rs` removes the hold from the wheel and the registry. From here on
//!    `is_held` is false. Nothing was sent yet.
//! 3. `core/release.rs`: `unlock` sends the release by the steps 4 to 7 of an acquire. A drop does
//!    not wait for the reply: `watchdog/settle.rs` sends the release through `Store::send_unread`,
//!    and the thread that reads the reply leaves it in `store/unread.rs`.
//! 4. `settle` in `watchdog/settle.rs` answers for every reply. After an acknowledgement the ledger
//!    retains the release in `ledger/log.rs`, to send it again if another server takes over.
//!    Otherwise the ledger queues the release for its server, whose renewal thread sends it.

pub(crate) mod acquire;
pub(crate) mod acquire_many;
pub(crate) mod cache;
pub(crate) mod client_core;
pub(crate) mod deadlock;
pub(crate) mod extend;
pub(crate) mod fencing;
pub(crate) mod kept_holds;
pub(crate) mod lost_future;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
pub(crate) mod named;
pub(crate) mod raw_guard;
pub(crate) mod release;
pub(crate) mod revocation_future;
pub(crate) mod spec;
pub(crate) mod traces;
pub(crate) mod tries;
pub(crate) mod wait;
