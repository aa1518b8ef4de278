//! Distributed locks on Redis and Valkey for threaded programs: blocking calls, no async runtime.
//!
//! ```no_run
//! use wheellock::Client;
//!
//! let client = Client::connect("redis://127.0.0.1/")?;
//! let lock = client.lock("orders:42");
//! {
//!     let guard = lock.lock()?; // waits; renewed until dropped
//!     assert!(guard.is_held()); // local, no round trip
//! } // released
//! # Ok::<(), wheellock::Error>(())
//! ```
//!
//! # What a holder may rely on
//!
//! 1. Two holders never both see [`is_held() == true`](LockGuard::is_held) at one instant, **as long as** the holders'
//!    clocks and the server's run at the same rate within one hundredth and are not set, no hypervisor pauses the
//!    machine, and the server keeps every key that it acknowledged until the time that it acknowledged: no
//!    [`force_unlock`](Lock::force_unlock), `DEL`, `FLUSHALL`, eviction, loss by failover or restart, and nobody who
//!    shortens a time to live. Once it is false for a hold, it is never true again. Left out is one kind of hold beside
//!    Java: a read hold with a longer lease than Java's, as [`ReadWriteLock`] explains.
//! 2. A holder that lost its lock is told: by [`LockGuard::is_held`], by [`LockGuard::check`], by [`LockGuard::lost`],
//!    by [`LockGuard::unlock`]; and the whole client by [`ClientBuilder::on_lost`].
//! 3. A process that dies leaves its lock to others after at most the longest lease that the hold was given.
//! 4. No call waits longer than it says, also when the server hangs or vanishes.
//!
//! # The family
//!
//! [`Client::lock`] is the reentrant lock that most need. Its siblings are made in the same way and give the same
//! [`Lock`]: [`fair_lock`](Client::fair_lock), [`read_write_lock`](Client::read_write_lock),
//! [`fenced_lock`](Client::fenced_lock), [`spin_lock`](Client::spin_lock), [`simple_lock`](Client::simple_lock),
//! [`non_reentrant_lock`](Client::non_reentrant_lock). [`MultiLock`] takes several at once, [`RedLock`] one on a
//! majority of servers. [`Semaphore`], [`ExpirableSemaphore`] and [`CountDownLatch`] are no locks, and wait in the same
//! way.
//!
//! # What it does not do
//!
//! * It does not stop a holder. Code between two looks at `is_held` can run after the lock is lost. Where that must not
//!   happen, the protected resource has to refuse stale writers by a fencing token.
//! * It is no safer than its server. A Redis that fails over or restarts without its keys has lost the locks.
//! * [`Client::in_memory`] excludes the threads of one process only.
//!
//! # In a cluster
//!
//! `redis-cluster://a:7000,b:7000` or [`ClientBuilder::cluster`] names some nodes of a Redis or Valkey cluster; the rest
//! is asked for. All keys and the channel of one lock lie in one slot, as Redisson names them, so each lock is at one
//! node, and many locks spread over all. A slot that moves and a replica that takes over are followed; holds that the
//! cluster kept are kept. What to know:
//!
//! * A failover can lose what the old master had acknowledged and not yet copied: locks are copied as everything else
//!   is, afterwards. The hold that lost its key is told by its next renewal; until then two may hold the lock. A hold
//!   with a lease of its own is not prolonged, but asked for as often: at thirds of it or of
//!   [`foreign_watchdog`](ClientBuilder::foreign_watchdog), whichever is shorter.
//! * Until a dead master's replica has taken over, calls for its locks fail in the time that they always have, and holds
//!   wait for their renewal: choose a lease that is well above the cluster's `cluster-node-timeout`.
//! * While a slot is on its way to another node, its locks can be taken, renewed and released. What has to touch several
//!   names together is refused until the slot has arrived: taking a fair or fenced lock, one more reader of a lock that
//!   is read already, releases of fair and read-write locks, forced ones, and most of what semaphores and latches do. It
//!   is tried as long as any call, and a release is owed afterwards. A message may be lost then; waiters find out within
//!   a second.
//! * A reader has names of his own beside the lock's. He is renewed while these are behind it, and not while they are
//!   ahead of it: if they stay ahead for what is left of his lease, at least 20 s of the default's 30 s, his hold is
//!   lost, and told so.
//! * A name with braces needs a tag in them, as `{user}:42` has one. `a{b` or `a}b` is an
//!   [`Error::InvalidName`] before anything is sent.
//! * Messages go through the slots (`SPUBLISH`) if the cluster knows `PUBSUB SHARDNUMSUB`, which the user must be allowed
//!   to ask: so Redisson decides it, and who decides otherwise is not heard.
//! * One more thread finds out who serves what, once there was a reason to ask.
//!
//! # Being told
//!
//! A client can be given callbacks: for every hold that is lost ([`on_lost`](ClientBuilder::on_lost)), for holds that
//! last for long ([`on_long_hold`](ClientBuilder::on_long_hold)) and for a server that endangers locks or delays waiters
//! ([`on_warning`](ClientBuilder::on_warning)). They run on a thread of their own.
//!
//! With the cargo feature `tracing` the same reports are events, all of level `WARN` and target `wheellock`:
//!
//! | event | fields |
//! |---|---|
//! | `lock_lost` | `lock`, `owner`, `reason`, `held_for` |
//! | `lock_held_long` | `lock`, `owner`, `held_for` |
//! | `server_evicts` | `policy` |
//! | `server_clock_jumped` | `by`, `forward` |
//! | `server_refuses_channels` | `refusal` |
//!
//! They are emitted on the same thread, which then every client has, so they reach the global subscriber. One that
//! blocks or panics harms no lock.
//!
//! # Terms
//!
//! *Lease*: how long a hold lasts unless it is renewed. *Watchdog*: what renews it, every third of the lease, on a
//! [hashed timing wheel](hashed_wheel). *Owner*: the client's identity and a number that is drawn anew for every
//! outermost hold. *Guard*: the proof of holding; a hold that is nested has several.
//!
//! # The watchdog
//!
//! A hold without a lease of its own is *watched*: renewed for as long as a guard of it lives. With the default lease
//! of 30 s:
//!
//! * *When it renews.* At the latest 9.98 s after the request that granted or renewed it last was sent: two ticks before
//!   a third of the lease. Mostly somewhat earlier: holds that were taken together are spread over the whole interval,
//!   and what falls due within a twentieth of it goes in one script, of 25 holds at most; of 100 when many are behind
//!   ([`ClientBuilder::renewal_batch`]). Four scripts go together, and up to ten are under way when many are behind, on a
//!   connection of their own. So 20 s of every lease are left for trouble.
//! * *What the server answers* is one of three things for each hold. *Renewed*: valid for another lease, less one
//!   hundredth and 2 ms, counted from before the renewal was sent. *Not yours*: the key is gone or somebody else's, and
//!   the hold is lost at once. *No answer*, or an error for the whole script: nothing is known. A script that is refused
//!   is cut in two until the one key that is to blame stands alone, unless the server refuses all of them; what was not
//!   answered is tried again, after an eighth
//!   of the time that is left, 3 s at most and 50 ms at least. An attempt takes a tenth of the lease at most, or four
//!   round trips as they were of late or 250 ms if that is longer, and never more than 3 s.
//! * *When it gives up.* When the validity ends, 29.698 s after the request of the last renewal that was answered. The
//!   hold is then lost for good, also if an answer comes later. The server may still keep the key; its release is tried
//!   until it is acknowledged or the lease must have ended.
//! * *What the holder sees.* [`LockGuard::is_held`] turns false at that instant, whatever any thread does; the message
//!   of [`LockGuard::lost`] comes within a tick of 10 ms, also while a renewal hangs.
//!
//! It takes two threads for any number of holds: a ticker, which never touches a socket, and one that sends renewals. A
//! third reads messages as soon as somebody has waited. In a cluster each node in use has its own of the last two.
//!
//! # Sentinel
//!
//! Behind sentinels ([`ClientBuilder::sentinels`]) a client follows the master. What a failover does to it:
//!
//! * *A hold* that the new master knows goes on. One that had not reached it is lost: replication is asynchronous, and
//!   somebody else may have taken the lock before its holder can be told. Every hold is asked for at the new master at
//!   once, 100,000 of them within 2 s, also one with a lease of its own; what the new master does not know is told as
//!   [`Deleted`](LostReason::Deleted) or [`TakenOver`](LostReason::TakenOver). So the time in which two believe is
//!   bounded by how soon the client sees the switch. Only a fencing token makes such a time harmless.
//!   [`replica_acks`](ClientBuilder::replica_acks) makes it rarer, and a [`RedLock`] of independent masters rare.
//! * *The old master*, which may accept writes for seconds, is not written to once the switch was seen: all connections
//!   are shut, and none is made to a server that does not say that it is a master. What was sent before may still run
//!   there.
//! * *A call* that was under way is sent again, and a waiter asks and subscribes at the new master. A failover that
//!   takes longer than a call has patience, twice the [command timeout](ClientBuilder::command_timeout), is an error of
//!   the call, and of a wait that happens to ask then: with the usual `down-after-milliseconds` of 30 s choose a longer
//!   one.
//! * *The sentinels* are needed only for a failover. While all are gone, the client goes on at the master that it knows.
//!   Of several answers that of the latest failover counts, and what is known is not taken back unless more than half of
//!   all sentinels say so.
//! * *The servers' clocks* should agree: a replica ends a key when its own clock says so.
//!
//! # Counts
//!
//! [`Client::stats`] says what a client has done; it is always counted. With the cargo feature `metrics` the same goes
//! to the recorder of the `metrics` crate: the counters `wheellock_renewals_total`, `wheellock_renewal_scripts_total`,
//! `wheellock_renewal_scripts_unanswered_total`, `wheellock_renewal_retries_total`, `wheellock_panics_total` and
//! `wheellock_lost_total` with the label `reason`; the histograms `wheellock_renewal_lateness_seconds` and
//! `wheellock_renewal_round_trip_seconds`; and the gauges `wheellock_held`, `wheellock_waiters` and
//! `wheellock_owed_releases`, each the sum over all clients of the program.
//!
//! # TLS and identity
//!
//! With the cargo feature `tls`, a URL that begins with `rediss://` speaks TLS, by rustls. The server's certificate is
//! always looked at, and the builder's `tls` names an authority of one's own and what to show to a server that asks.
//! Who connects stands in the URL, or comes from a callback that is asked at each connect
//! ([`ClientBuilder::credentials`]). No password and no key stands in a `Debug`, an error or an event.
//!
//! # Errors
//!
//! There is one [`Error`]. It says whether it [may pass](Error::is_retryable) and whether the command
//! [may have run](Error::is_outcome_unknown). Contention is never an error. Which fault leads to which error of which
//! call is in the tables of [`faults`].
//!
//! # Tests of your own program
//!
//! Build the client on a [`Memory`] with a [`ManualClock`]: leases of an hour end when the test says so, and the server
//! fails when the test says so.
//!
//! # Where it comes from
//!
//! Keys, messages and the watchdog are those of Redisson, with which it shares locks: [`redisson`] says how. The
//! lease's arithmetic follows Gray and Cheriton (Leases, 1989); why a lock alone does not fence is Martin Kleppmann's
//! (How to do distributed locking, 2016). `DESIGN.md` in the repository gives the reasons for everything else.

mod asked;
mod back_off;
mod bundle;
mod call;
mod callbacks;
mod caller;
mod claim;
mod client;
mod client_builder;
mod clock;
mod config;
mod count_down_latch;
mod credentials;
mod crew;
mod errands;
mod error;
mod expirable_semaphore;
mod farewell;
pub mod faults;
mod fenced_guard;
mod grip;
mod guard;
mod guards;
mod hold;
mod holds;
mod keyspace;
mod kind;
mod lease;
mod leaving;
mod lock;
mod multi_guard;
mod multi_lock;
mod name;
mod op;
mod owned_guard;
mod owner;
mod part;
mod permit;
mod permit_id;
mod permits;
mod plan;
mod process;
mod read_write_lock;
mod red_guard;
mod red_lock;
pub mod redisson;
mod report;
mod round;
mod semaphore;
mod statistics;
mod store;
mod taken;
mod taker;
mod taking;
mod team;
mod teller;
mod tied;
#[cfg(feature = "tls")]
mod tls_settings;
mod told;
mod trace;
mod validity;
mod value;
mod wait;
mod watchdog;

pub use hashed_wheel::{Clock, ManualClock, Spread, SystemClock};

pub use crate::back_off::BackOff;
pub use crate::client::{Client, ShutdownReport};
pub use crate::client_builder::ClientBuilder;
pub use crate::count_down_latch::CountDownLatch;
pub use crate::credentials::Credentials;
pub use crate::error::{Error, LostReason};
pub use crate::expirable_semaphore::ExpirableSemaphore;
pub use crate::fenced_guard::FencedGuard;
pub use crate::guard::LockGuard;
pub use crate::guards::Guard;
pub use crate::lock::{FencedLock, Lock};
pub use crate::multi_guard::MultiGuard;
pub use crate::multi_lock::MultiLock;
pub use crate::owned_guard::OwnedGuard;
pub use crate::part::AnyLock;
pub use crate::permit::Permit;
pub use crate::permit_id::PermitId;
pub use crate::permits::Permits;
pub use crate::read_write_lock::ReadWriteLock;
pub use crate::red_guard::RedGuard;
pub use crate::red_lock::RedLock;
pub use crate::report::{HeldLock, LostLock, Warning};
pub use crate::semaphore::Semaphore;
pub use crate::statistics::{Losses, Stats};
pub use crate::store::Memory;
pub use crate::tied::{AnyThread, ThisThread};
#[cfg(feature = "tls")]
pub use crate::tls_settings::TlsSettings;
