//! Redisson itself on the other side: what a Java program and this library do with one lock on one
//! server.
//!
//! The Java program stands beside this file; its grammar opens `RedissonPeer.java`. `run-tests`
//! builds it with Maven and runs these tests, which are ignored otherwise:
//!
//! ```text
//! mvn -q -f lock/tests/redisson/pom.xml package dependency:copy-dependencies
//! export REDISSON_PEER="$PWD/target/redisson-peer/redisson-peer.jar"
//! cargo test --package wheellock --test redisson -- --include-ignored
//! ```
//!
//! `REDISSON_VERSION=3.27.2 ./run-tests redisson` runs the tests of mixed sections and of waking on
//! that version: the program is the same, and `REDISSON_JARS` names the folder of its jars. A kind
//! that the version lacks is left out.
//!
//! A test is a function of the kind of lock. The table at the end of this file makes tests of it: a
//! kind is one line.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a helper that fails is a test that fails, and children tell by printing"
)]

#[path = "../common/mod.rs"]
mod common;

mod agreement;
mod cached;
mod child;
mod clustered;
mod counting;
mod death;
mod defects;
mod fair_queue;
mod grammar;
mod hand_over;
mod holders;
mod hot;
mod killed;
mod kind;
mod latch;
mod majority;
mod min_hold;
mod nesting;
mod peer;
mod permits;
mod prefix;
mod readers;
mod semaphore;
mod several;
mod shared;
mod tokens;
mod waking;

use std::time::Duration;

use crate::kind::Kind;

/// The tests of each kind of exclusive lock, and [`KINDS`].
macro_rules! exclusive_locks {
    ($($module:ident: $kind:expr;)+) => {
        /// Every kind of exclusive lock that both sides have.
        pub(crate) const KINDS: &[Kind] = &[$($kind),+];

        $(mod $module {
            use super::*;

            const KIND: Kind = $kind;

            exclusive_locks! { @tests
                hand_over::a_release_in_java_hands_over_to_rust_at_once;
                hand_over::a_release_in_rust_hands_over_to_java_at_once;
                hand_over::a_wait_ends_in_time_on_both_sides;
                agreement::a_hold_in_java_is_the_same_seen_from_rust;
                agreement::a_hold_in_rust_is_the_same_seen_from_java;
                agreement::a_hold_forced_open_on_one_side_is_gone_on_the_other;
                agreement::a_lease_ends_on_both_sides;
                min_hold::a_waiter_in_java_has_the_lock_when_a_shortest_hold_is_over;
                counting::increments_of_two_java_and_two_rust_processes_all_count;
            }
        })+
    };
    (@tests $($file:ident::$test:ident;)+) => {
        $(#[test]
        #[ignore = "needs the Java program: ./run-tests --all builds it"]
        fn $test() {
            if KIND.since <= kind::redisson() {
                $file::$test(&KIND);
            }
        })+
    };
}

/// How long a hand-over may take where a message wakes the waiter. Half of the time after which a
/// waiter of ours tries without a message; one in Java waits for the end of the lease.
const AT_ONCE: Duration = Duration::from_millis(500);

/// The longest pause between two tries of a waiter that no message wakes, on either side. For as
/// long as that a release may go unnoticed.
const LONGEST_PAUSE: Duration = Duration::from_millis(128);

/// One try, and one more when it has subscribed.
const TRIES: u64 = 2;

/// One try, and one after each pause from 1 ms, doubled each time, until the longest begins; and
/// two more, for pauses that do not stop growing there to show.
const TRIES_IN_PAUSES: u64 = 10;

exclusive_locks! {
    reentrant: Kind {
        word: "lock",
        since: (3, 0),
        open: |client, name| Box::new(client.lock(name)),
        reentrant: true,
        tells_loss: true,
        tries: TRIES,
        at_once: AT_ONCE,
    };
    fenced: Kind {
        word: "fenced",
        since: (3, 18),
        open: |client, name| Box::new(client.fenced_lock(name)),
        reentrant: true,
        tells_loss: true,
        tries: TRIES,
        at_once: AT_ONCE,
    };
    spin: Kind {
        word: "spin",
        since: (3, 14),
        open: |client, name| Box::new(client.spin_lock(name)),
        reentrant: true,
        tells_loss: true,
        tries: TRIES_IN_PAUSES,
        at_once: LONGEST_PAUSE.saturating_add(AT_ONCE),
    };
    non_reentrant: Kind {
        word: "nonreentrant",
        since: (4, 0),
        open: |client, name| Box::new(client.non_reentrant_lock(name)),
        reentrant: false,
        tells_loss: true,
        tries: TRIES,
        at_once: AT_ONCE,
    };
    fair: Kind {
        word: "fair",
        since: (3, 0),
        open: |client, name| Box::new(client.fair_lock(name)),
        reentrant: true,
        tells_loss: false,
        tries: TRIES,
        at_once: AT_ONCE,
    };
    non_reentrant_fair: Kind {
        word: "nonreentrantfair",
        since: (4, 0),
        open: |client, name| Box::new(client.non_reentrant_fair_lock(name)),
        reentrant: false,
        tells_loss: false,
        tries: TRIES,
        at_once: AT_ONCE,
    };
    write: Kind {
        word: "write",
        since: (3, 0),
        open: |client, name| Box::new(client.read_write_lock(name).write_lock()),
        reentrant: true,
        tells_loss: true,
        tries: TRIES,
        at_once: AT_ONCE,
    };
}
