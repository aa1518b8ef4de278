//! Each decision that protects a promise is left out once, and the search finds what goes wrong.

use crate::model::kind::Kind;
use crate::testing::checked::checked_lock::CheckedLock;
use crate::testing::checked::clients::RETURNED_OVER;
use crate::testing::checked::majority::{self, CheckedMajority};
use crate::testing::checked::mutation::Mutation;
use crate::testing::checked::properties::{
    ENDED_TWO, LEFT, OUTLASTS, REAPPEARS, STUCK, TWO, VALID_AGAIN,
};
use crate::testing::checked::search::{Model, Order, report, search};
use crate::testing::checked::searches::{
    ACKNOWLEDGED, ALONE, CACHING, CRASHING, DEAD_READER, FAILOVER, FENCED, HANDING_OVER,
    LONGER_CACHED, LONGER_NESTED, MAJORITY, READING_OWN,
};
use crate::testing::checked::state::{Limits, SMALL};

const AGAIN: Limits = Limits { attempts: 2, ..ALONE };

/// Each decision, limits within which it is missed, and what is the case without it.
const OF_ONE_LOCK: &[(Mutation, Limits, &str)] = &[
    (Mutation::NoNotAfter, CRASHING, REAPPEARS),
    (Mutation::NoNotAfterOfRenewals, CRASHING, OUTLASTS),
    (Mutation::NoNotAfterOfCounts, Limits { guards: 2, ..CRASHING }, OUTLASTS),
    (Mutation::EstimateAhead, CRASHING, OUTLASTS),
    (Mutation::OneOwnerForAllHolds, Limits { holds: 2, messages: 3, time: 1, ..SMALL }, TWO),
    (Mutation::CopiesForgotten, AGAIN, REAPPEARS),
    (Mutation::OnlyLastCopyRemembered, AGAIN, REAPPEARS),
    (
        Mutation::OwnersDroppedWithCopies,
        Limits { attempts: 2, holds: 2, messages: 3, time: 1, ..SMALL },
        REAPPEARS,
    ),
    (Mutation::ReleasedOnce, ALONE, REAPPEARS),
    (Mutation::LossesNotReleased, Limits { time: 3, progress: true, ..ALONE }, STUCK),
    (Mutation::ReleasesNotQueued, Limits { progress: true, ..ALONE }, STUCK),
    (Mutation::ReleasesNotSentAgain, FAILOVER, STUCK),
    (Mutation::ReplicasNotAsked, ACKNOWLEDGED, TWO),
    (Mutation::RelativeCounts, AGAIN, REAPPEARS),
    (Mutation::CountsCreate, Limits { guards: 2, ..ALONE }, REAPPEARS),
    (Mutation::RenewalsCreate, Limits { renewals: 1, ..ALONE }, REAPPEARS),
    (Mutation::LeasesShortened, Limits { guards: 2, nested_lease: 400, ..SMALL }, TWO),
    (Mutation::ValidityFromReply, Limits { time: 4, ..SMALL }, TWO),
    (Mutation::NoDriftMargin, Limits { time: 3, rate: 101, ..SMALL }, TWO),
    (Mutation::ExtendedAfterEnd, Limits { renewals: 1, time: 3, ..ALONE }, VALID_AGAIN),
    (Mutation::ReturnedWhenLate, Limits { time: 3, ..ALONE }, RETURNED_OVER),
    (Mutation::HeldWhileReleasing, SMALL, TWO),
    (Mutation::AnyOwnerReleased, SMALL, "a command has changed another owner's hold"),
    (Mutation::ReleasedAndHandedOver, Limits { waiters: 1, time: 0, ..SMALL }, TWO),
    (Mutation::TakenOverUnseen, HANDING_OVER, RETURNED_OVER),
    (
        Mutation::CopiesNotHandedOver,
        Limits { attempts: 2, time: 0, progress: false, ..HANDING_OVER },
        REAPPEARS,
    ),
    (Mutation::LongerLeasesHandedOver, LONGER_NESTED, OUTLASTS),
    (Mutation::GivenHoldsForgotten, HANDING_OVER, STUCK),
    (
        Mutation::LossesOfFormerHolders,
        Limits { forced: 1, ..HANDING_OVER },
        "a hold was found to be gone, and its holder is not told",
    ),
    (Mutation::CachedTakenUnseen, CACHING, RETURNED_OVER),
    (Mutation::TakenWhileReleased, Limits { caches: true, time: 0, ..SMALL }, TWO),
    (Mutation::CachedForgotten, CACHING, STUCK),
    (
        Mutation::CopiesNotCached,
        Limits { attempts: 2, time: 0, progress: false, ..CACHING },
        REAPPEARS,
    ),
    (Mutation::LongerLeasesCached, LONGER_CACHED, OUTLASTS),
    (
        Mutation::LossesOfCachedHolds,
        Limits { forced: 1, ..CACHING },
        "a hold was found to be gone, and its holder is not told",
    ),
    (Mutation::QueueNotLeft, Limits { kinds: [Kind::Fair; 3], progress: true, ..SMALL }, LEFT),
    (
        Mutation::ReadsWithWritersOwner,
        Limits { holds: 2, ..READING_OWN },
        "a command has ended a trusted hold that it does not name",
    ),
    (Mutation::DeadReadersCount, DEAD_READER, LEFT),
    (
        Mutation::TokensIgnored,
        FENCED,
        "the resource takes a write of an earlier hold after a later one's",
    ),
    (
        Mutation::TokensWithoutClock,
        Limits { writes: false, fails_over: true, time: 0, ..FENCED },
        "a later hold has no larger token",
    ),
    (Mutation::RepliesForgotten, Limits { forced: 2, ..SMALL }, ENDED_TWO),
];

const EMPTIED: majority::Limits = majority::Limits { emptied: 1, ..MAJORITY };

const OF_MAJORITIES: &[(Mutation, majority::Limits, &str)] = &[
    (Mutation::MinorityGrants, MAJORITY, TWO),
    (
        Mutation::GrantsCountedUnseen,
        majority::Limits { time: 3, progress: false, ..MAJORITY },
        RETURNED_OVER,
    ),
    (Mutation::MinoritiesKept, MAJORITY, STUCK),
    (Mutation::RestsKept, MAJORITY, STUCK),
    (
        Mutation::JoinsWithoutMajority,
        majority::Limits { time: 3, renewals: true, progress: false, ..MAJORITY },
        VALID_AGAIN,
    ),
    (Mutation::ReturnsEmpty, EMPTIED, TWO),
];

fn find_without<M: Model>(mutation: Mutation, model: &M, violation: &str) {
    let found = search(model, Order::Breadth, 2_000_000);
    let trace = found.expect_err(&format!("{mutation:?} changes nothing"));
    report(format_args!("{mutation:?}: {}, {} steps", trace.violation, trace.steps));
    assert_eq!(trace.violation, violation, "{mutation:?}:\n{}", trace.text);
}

#[test]
fn leaving_out_a_decision_that_protects_a_promise_is_found() {
    for (mutation, limits, violation) in OF_ONE_LOCK {
        let model = CheckedLock::without(*limits, *mutation);
        find_without(*mutation, &model, violation);
    }
}

#[test]
fn leaving_out_a_decision_that_protects_a_majority_is_found() {
    for (mutation, limits, violation) in OF_MAJORITIES {
        let model = CheckedMajority::without(*limits, *mutation);
        find_without(*mutation, &model, violation);
    }
}
