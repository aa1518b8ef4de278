//! What is searched, completely or by walks, with all decisions in place.

use std::env;
use std::fmt::Debug;

use crate::model::kind::Kind;
use crate::testing::checked::checked_lock::CheckedLock;
use crate::testing::checked::majority::{self, CheckedMajority};
use crate::testing::checked::search::{Model, Order, Trace, fingerprint, report, search, walk};
use crate::testing::checked::state::{Limits, SMALL};

pub(crate) const ALONE: Limits = Limits { clients: 1, holds: 2, ..SMALL };
pub(crate) const CRASHING: Limits =
    Limits { clients: 1, renewals: 1, crashes: 1, time: 5, ..SMALL };
pub(crate) const FENCED: Limits =
    Limits { kinds: [Kind::Fenced; 3], writes: true, messages: 1, time: 4, ..SMALL };
pub(crate) const FAILOVER: Limits = Limits { time: 1, fails_over: true, progress: true, ..ALONE };
/// Every grant is on the replica before it counts.
pub(crate) const ACKNOWLEDGED: Limits =
    Limits { time: 0, fails_over: true, replica_acks: true, progress: true, ..SMALL };
pub(crate) const READ_WRITE: [Kind; 3] = [Kind::Read, Kind::Write, Kind::Read];
/// A client with a second thread.
pub(crate) const HANDING_OVER: Limits =
    Limits { holds: 1, waiters: 1, renewals: 1, time: 3, progress: true, ..ALONE };
/// A client with a second thread, whose first nests with a lease of two seconds.
pub(crate) const LONGER_NESTED: Limits =
    Limits { guards: 2, nested_lease: 2000, waiters: 1, messages: 1, ..CRASHING };
/// A client that keeps its hold between two uses.
pub(crate) const CACHING: Limits = Limits { waiters: 0, caches: true, ..HANDING_OVER };
/// A client that keeps its hold, whose first thread nests with a lease of two seconds.
pub(crate) const LONGER_CACHED: Limits = Limits { waiters: 0, caches: true, ..LONGER_NESTED };
/// A thread that writes and reads beside another writer.
pub(crate) const READING_OWN: Limits = Limits {
    clients: 3,
    kinds: [Kind::Write, Kind::Read, Kind::Write],
    reads_own: true,
    time: 0,
    ..SMALL
};
/// A reader dies, and another goes on.
pub(crate) const DEAD_READER: Limits =
    Limits { kinds: [Kind::Read; 3], crashes: 1, messages: 1, time: 5, progress: true, ..SMALL };
pub(crate) const MAJORITY: majority::Limits = majority::Limits {
    attempts: 1,
    asks: 2,
    given_up: 0,
    renewals: false,
    emptied: 0,
    time: 4,
    progress: true,
};

/// The limits of a walk.
const WALKS: Limits = Limits {
    clients: 3,
    holds: 4,
    attempts: 3,
    renewals: 3,
    guards: 3,
    nested_lease: 400,
    waiters: 2,
    crashes: 1,
    messages: 6,
    time: 8,
    ..SMALL
};
const MAJORITY_WALKS: majority::Limits = majority::Limits {
    attempts: 3,
    asks: 4,
    given_up: 4,
    renewals: true,
    emptied: 2,
    time: 12,
    progress: true,
};

/// A number from the environment, for a long run.
fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|value| value.parse().unwrap())
}

/// Searches all states of a model.
fn search_whole<M: Model>(what: &str, model: &M) {
    let searched = search(model, Order::Breadth, 2_000_000);
    let searched = searched.unwrap_or_else(|trace| panic!("{what}:\n{}", trace.text));
    report(format_args!("{what}: {searched}"));
    assert!(searched.is_complete, "{what}: {searched}");
}

/// Searches all states of one lock within some limits.
fn search_all(what: &str, limits: Limits) {
    search_whole(what, &CheckedLock::new(limits));
}

#[test]
fn two_clients_keep_every_promise_in_any_order_of_two_attempts() {
    search_all("two attempts", Limits { attempts: 2, progress: true, ..SMALL });
}

#[test]
fn a_waiter_that_draws_new_owners_leaves_none_behind() {
    let limits = Limits { attempts: 2, holds: 2, time: 0, ..SMALL };
    search_all("two attempts with new owners", limits);
}

#[test]
fn two_clients_keep_every_promise_when_they_renew_and_crash() {
    let limits = Limits { renewals: 1, crashes: 1, messages: 3, time: 1, ..SMALL };
    search_all("renewals and a crash", limits);
    search_all("one client's crash", Limits { guards: 2, progress: true, ..CRASHING });
}

#[test]
fn two_clients_keep_promises_with_server_clock_1_percent_off() {
    for rate in [99, 101] {
        let limits = Limits { messages: 1, time: 4, rate, ..SMALL };
        search_all(&format!("a rate of {rate} %"), limits);
    }
}

#[test]
fn wrong_estimate_of_the_server_clock_breaks_no_promise() {
    for ahead in [-400, 331] {
        let limits = Limits { attempts: 2, ahead, ..CRASHING };
        search_all(&format!("an estimate that is {ahead} ms ahead"), limits);
    }
}

#[test]
fn nested_holds_that_are_renewed_are_released_without_a_trace() {
    let nested = Limits { guards: 2, nested_lease: 400, time: 1, ..SMALL };
    search_all("nesting, two clients", nested);
    let alone = Limits { clients: 1, holds: 2, renewals: 1, progress: true, ..nested };
    search_all("nesting", alone);
}

#[test]
fn threads_that_hand_a_hold_over_keep_every_promise() {
    search_all("hand-over", Limits { attempts: 2, ..HANDING_OVER });
    search_all("hand-over, two clients", Limits { waiters: 1, time: 1, progress: true, ..SMALL });
    search_all("hand-over, a longer nested lease", LONGER_NESTED);
    search_all("hand-over, a forced release", Limits { forced: 1, ..HANDING_OVER });
}

#[test]
fn clients_that_cache_a_hold_keep_every_promise() {
    search_all("cache", Limits { attempts: 2, waiters: 1, ..CACHING });
    search_all("cache, two clients", Limits { caches: true, time: 1, progress: true, ..SMALL });
    search_all("cache, a crash", Limits { crashes: 1, time: 4, ..CACHING });
    search_all("cache, a longer nested lease", LONGER_CACHED);
    search_all("cache, a forced release", Limits { forced: 1, ..CACHING });
    search_all("cache, a failover", Limits { caches: true, ..FAILOVER });
}

#[test]
fn a_fencing_token_stops_every_write_that_comes_too_late() {
    search_all("fencing tokens", FENCED);
    search_all("tokens after a failover", Limits { fails_over: true, time: 0, ..FENCED });
}

#[test]
fn a_forced_release_that_is_sent_twice_ends_one_hold() {
    search_all("a forced release", Limits { forced: 2, time: 0, ..SMALL });
}

#[test]
fn every_lock_is_released_after_a_failover_with_lost_writes() {
    search_all("a failover", FAILOVER);
    search_all("a failover, grants on the replica", ACKNOWLEDGED);
    search_all("a failover, two clients", Limits { clients: 2, holds: 1, time: 0, ..FAILOVER });
}

#[test]
fn readers_and_writers_keep_every_promise() {
    let limits = Limits { kinds: READ_WRITE, progress: true, ..SMALL };
    search_all("a reader and a writer", limits);
    search_all("two readers, a crash", DEAD_READER);
}

#[test]
fn a_reader_under_its_own_write_hold_keeps_every_promise() {
    search_all("a reader under its own write hold", READING_OWN);
}

#[test]
fn a_fair_lock_keeps_every_promise() {
    let fair = Limits { kinds: [Kind::Fair; 3], progress: true, ..SMALL };
    search_all("a fair lock", Limits { attempts: 2, time: 1, ..fair });
}

#[test]
fn majority_keeps_all_promises_when_a_server_loses_its_keys() {
    let short = majority::Limits { time: 2, ..MAJORITY };
    search_whole("a majority", &CheckedMajority::new(short));
    let emptied = majority::Limits { emptied: 1, asks: 1, time: 1, ..MAJORITY };
    search_whole("a majority, one server emptied", &CheckedMajority::new(emptied));
}

/// Walks through fresh models, as what each keeps of earlier walks is bounded. With
/// `CHECKED_SEED`, the seeds begin there, so that several processes can share a run.
fn walk_all<M: Model>(what: &str, walks: u64, new: impl Fn() -> M) {
    let first = number("CHECKED_SEED").unwrap_or(0);
    let (mut steps, mut model) = (0, new());
    for seed in first..first + walks {
        if seed % 10_000 == 0 {
            model = new();
        }
        let walked = walk(&model, seed, 200);
        steps += walked.unwrap_or_else(|Trace { text, .. }| panic!("{what}, seed {seed}:\n{text}"));
    }
    report(format_args!("{walks} walks, {steps} steps: {what}"));
}

#[test]
fn long_walks_of_three_clients_violate_nothing() {
    let single = Limits { waiters: 0, ..WALKS };
    let models = [
        Limits { progress: true, ..WALKS },
        Limits { caches: true, progress: true, ..WALKS },
        Limits {
            renewals: 0,
            guards: 1,
            replica_acks: true,
            fails_over: true,
            progress: true,
            ..WALKS
        },
        Limits { kinds: [Kind::Fair; 3], ..single },
        Limits { kinds: READ_WRITE, ..single },
        Limits { kinds: READING_OWN.kinds, reads_own: true, ..single },
        Limits { fails_over: true, progress: true, ..WALKS },
        Limits { kinds: [Kind::Fenced; 3], writes: true, rate: 101, ..single },
    ];
    let walks = number("CHECKED_WALKS").unwrap_or(800) / (models.len() as u64 + 1);
    for limits in models {
        walk_all(&format!("{limits:?}"), walks, || CheckedLock::new(limits));
    }
    walk_all(&format!("{MAJORITY_WALKS:?}"), walks, || CheckedMajority::new(MAJORITY_WALKS));
}

/// With `CHECKED_STATES`, as many states of what is too large to be searched whole, or more.
#[test]
fn what_is_too_large_for_every_run_violates_nothing_either() {
    let Some(states) = number("CHECKED_STATES") else { return };
    search_whole("a majority over four steps", &CheckedMajority::new(MAJORITY));
    for limits in [
        Limits { attempts: 2, renewals: 1, crashes: 1, messages: 3, time: 3, ..SMALL },
        Limits { holds: 2, guards: 2, renewals: 1, messages: 3, time: 4, ..SMALL },
    ] {
        let limit = usize::try_from(states / 2).unwrap();
        let searched = search(&CheckedLock::new(limits), Order::Depth, limit);
        let searched = searched.unwrap_or_else(|trace| panic!("{limits:?}:\n{}", trace.text));
        report(format_args!("{searched}: {limits:?}"));
    }
}

/// What follows a state and what follows its mirror are the same, so one of them may stand for
/// both.
fn check_mirrors<M: Model<State: PartialEq + Debug>>(what: &str, model: &M) {
    let initial = model.initial();
    for mirror in 0..model.mirrors() {
        assert_eq!(model.mirrored(&initial, mirror), initial, "{what}");
    }
    let (mut steps, mut seen) = (Vec::new(), 0);
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut state = model.initial();
        for _ in 0..50 {
            let mut following = |state: &M::State| {
                steps.clear();
                model.steps(state, &mut steps);
                let after = steps.iter().map(|step| model.after(state, *step).unwrap());
                let mut after: Vec<u64> = after.map(|after| fingerprint(model, &after)).collect();
                after.sort_unstable();
                after
            };
            let own = following(&state);
            for mirror in 0..model.mirrors() {
                let mirrored = model.mirrored(&state, mirror);
                assert_eq!(fingerprint(model, &mirrored), fingerprint(model, &state), "{what}");
                assert_eq!(following(&mirrored), own, "{what}, seed {seed}");
                seen += 1;
            }
            following(&state);
            let Some(step) = random.choice(&steps).copied() else { break };
            state = model.after(&state, step).unwrap();
        }
    }
    assert!(seen > 100, "{what}: {seen}");
}

#[test]
fn states_equal_up_to_names_have_successors_equal_up_to_names() {
    for kind in [Kind::Reentrant, Kind::Fair, Kind::Fenced, Kind::Read, Kind::Write] {
        let limits = Limits { kinds: [kind; 3], fails_over: true, waiters: 0, ..WALKS };
        check_mirrors(&format!("{kind:?}"), &CheckedLock::new(limits));
    }
    check_mirrors("a majority", &CheckedMajority::new(MAJORITY_WALKS));
}
