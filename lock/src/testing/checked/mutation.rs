//! The decisions that a model can leave out, to see that the search finds what goes wrong then.

/// One decision of DESIGN, left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mutation {
    /// late copies: the server runs a copy whenever it arrives.
    NoNotAfter,
    /// late copies: it runs a renewal whenever it arrives.
    NoNotAfterOfRenewals,
    /// late copies: it runs a count whenever it arrives.
    NoNotAfterOfCounts,
    /// late copies: the estimate of the server's clock is the upper bound that a reply gives.
    EstimateAhead,
    /// late copies: all holds of a client have one owner, as with Redisson's thread ids.
    OneOwnerForAllHolds,
    /// late copies: a call that was answered forgets its attempts without an answer.
    CopiesForgotten,
    /// late copies: a call remembers the last of its attempts only.
    OnlyLastCopyRemembered,
    /// holders: a waiter draws a new owner although a copy with the last one may arrive.
    OwnersDroppedWithCopies,
    /// release queue: one acknowledgement is enough, although a copy of the acquire may arrive.
    ReleasedOnce,
    /// release queue: a hold that was lost is never released.
    LossesNotReleased,
    /// release queue: a release without an answer is not sent again.
    ReleasesNotQueued,
    /// failover: what the old server has acknowledged is not released again on the new one.
    ReleasesNotSentAgain,
    /// failover: a grant counts although no replica has acknowledged it.
    ReplicasNotAsked,
    /// re-entry: an acquire and a release count up and down.
    RelativeCounts,
    /// re-entry: a count makes the hold that it does not find.
    CountsCreate,
    /// re-entry: a renewal makes the hold that it does not find.
    RenewalsCreate,
    /// re-entry: a nested acquire shortens the time to live.
    LeasesShortened,
    /// validity: it counts from the reply.
    ValidityFromReply,
    /// validity: a holder trusts the whole lease.
    NoDriftMargin,
    /// validity: a renewal that is answered after the end extends the hold.
    ExtendedAfterEnd,
    /// validity: an acquire that was granted too late returns a guard.
    ReturnedWhenLate,
    /// What is promised: a hold ends when its release is acknowledged.
    HeldWhileReleasing,
    /// One release ends whatever hold it meets.
    AnyOwnerReleased,
    /// hand-over: a hold that is handed over is released as well.
    ReleasedAndHandedOver,
    /// hand-over: the next holder does not look at the validity.
    TakenOverUnseen,
    /// hand-over: the next holder forgets the copies of the acquire.
    CopiesNotHandedOver,
    /// hand-over: a hold is handed over although a nested lease keeps its key for longer.
    LongerLeasesHandedOver,
    /// hand-over: nobody releases what was given to a waiter that leaves.
    GivenHoldsForgotten,
    /// hand-over: a loss that is found for one holder is not told to the next.
    LossesOfFormerHolders,
    /// cache: the next holder does not look at the validity.
    CachedTakenUnseen,
    /// cache: a hold that is released because it is wanted is taken all the same.
    TakenWhileReleased,
    /// cache: a hold that ends while it is cached is not released.
    CachedForgotten,
    /// cache: the next holder forgets the copies of the acquire.
    CopiesNotCached,
    /// cache: a hold is cached although a nested lease keeps its key for longer.
    LongerLeasesCached,
    /// cache: a loss that is found while the hold is cached is forgotten.
    LossesOfCachedHolds,
    /// fair queue: an acquire that ends without a hold does not leave the queue.
    QueueNotLeft,
    /// kinds of locks: a read hold has the owner of the write hold around it.
    ReadsWithWritersOwner,
    /// kinds of locks: a reader whose levels have ended counts as one that is left.
    DeadReadersCount,
    /// kinds of locks: a resource takes every write.
    TokensIgnored,
    /// kinds of locks: tokens are only counted up.
    TokensWithoutClock,
    /// red lock: one server decides.
    MinorityGrants,
    /// red lock: servers that granted count although their validity has ended since.
    GrantsCountedUnseen,
    /// red lock: what was granted without a majority is not released.
    MinoritiesKept,
    /// red lock: what is left after a loss is not released.
    RestsKept,
    /// red lock: a member joins although no majority is held without it.
    JoinsWithoutMajority,
    /// red lock, a condition: a server that was emptied stays away for the longest lease.
    ReturnsEmpty,
    /// request sequences: the server does not remember the reply to a call.
    RepliesForgotten,
    /// request sequences: a copy of an earlier call runs.
    EarlierCallsRun,
    /// semaphores: an acquire that ended without a reply is not undone.
    AcquiresNotUndone,
    /// semaphores: an undo does not forbid the acquire to its copies.
    UndosForgotten,
}
