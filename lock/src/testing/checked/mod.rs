//! For tests only. The locks as models that a machine searches: every order of requests, replies,
//! losses, copies, pauses, crashes and failovers within limits. The page `verification` of the
//! guide has the properties, figures and limits.
//!
//! * The model cannot drift from the code. Its server is the operations' effect in memory, on the
//!   same keyspace. Its clients decide by the library's own functions: until when copies may arrive
//!   (`store/retry.rs`), what an acquire leaves (`core/traces.rs`), whether a loss or an
//!   acknowledgement leaves a release (`watchdog/endings.rs`, `ledger/release.rs`), whether a hold
//!   may be handed over (`hold/hold.rs`), what becomes of a majority (`locks/held_locks.rs`), and
//!   validity. So these decisions are functions of values, apart from threads and clocks.
//! * Each rule is left out once, and the search must find the consequence. A rule whose absence no
//!   search notices is either not needed or not checked. Exclusion alone would not notice that
//!   commands have no not-after, or that a renewal makes a hold: hence the properties of the way to
//!   a free lock.
//! * A keyspace is a number in a state, and the effect of a command on the keyspace is looked up
//!   after the first time. A state is searched in about ten microseconds without optimization.
//! * States that differ in names only are searched once: of clients that do the same, and of a
//!   majority's servers. A test compares the successors of a state and of its mirrors.
//! * The checker is 200 lines of our own. stateright finds the same states at the same speed, and
//!   brings an HTTP server.

pub(crate) mod checked_lock;
pub(crate) mod clients;
pub(crate) mod history;
pub(crate) mod majority;
pub(crate) mod mutation;
pub(crate) mod mutations;
pub(crate) mod one_lock;
pub(crate) mod permits;
pub(crate) mod properties;
pub(crate) mod search;
pub(crate) mod searches;
pub(crate) mod server;
pub(crate) mod serving;
pub(crate) mod state;
