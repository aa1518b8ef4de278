//! The states of one lock as a model, and the steps between them.

use crate::ledger::release::ReleaseSchedule;
use crate::model::kind::Kind;
use crate::ops::value::ServerTime;
use crate::testing::checked::server::Keys;

/// The clients that a state has room for.
pub(crate) const CLIENTS: usize = 3;
/// The holds that each may begin.
pub(crate) const HOLDS: u8 = 4;
/// The messages that may be under way.
pub(crate) const MESSAGES: usize = 6;
/// The releases that a client may have queued.
pub(crate) const RELEASES: usize = 4;

/// What may happen, and how often.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent choice")]
pub(crate) struct Limits {
    pub(crate) clients: u8,
    /// The kind of each client's lock.
    pub(crate) kinds: [Kind; CLIENTS],
    /// The holds that each client may begin.
    pub(crate) holds: u8,
    /// Of each acquire.
    pub(crate) attempts: u8,
    /// Of each client.
    pub(crate) renewals: u8,
    /// The most guards of a hold, and the lease of those after the first in milliseconds.
    pub(crate) guards: u8,
    pub(crate) nested_lease: u64,
    /// The threads of each client that may wait for a hold of it.
    pub(crate) waiters: u8,
    /// Whether a hold stays with its client after its last guard.
    pub(crate) caches: bool,
    /// Whether the second client is the first one's thread again: it reads under the first one's
    /// write hold.
    pub(crate) reads_own: bool,
    /// The clients that may crash.
    pub(crate) crashes: u8,
    /// Messages under way.
    pub(crate) messages: usize,
    /// Steps of time.
    pub(crate) time: u8,
    /// The rate of the server's clock, in a hundredth of the clients'.
    pub(crate) rate: i64,
    /// By how many milliseconds the clients' estimate of the server's clock is ahead.
    pub(crate) ahead: i64,
    /// Whether a holder writes to a resource, with its fencing token.
    pub(crate) writes: bool,
    /// Whether a replica may take over that lacks the server's last writes.
    pub(crate) fails_over: bool,
    /// Whether a grant counts only if the replica has received it.
    pub(crate) replica_acks: bool,
    /// How often a forced release is sent. All are copies of one call.
    pub(crate) forced: u8,
    /// Whether each state is looked at for a way to a free lock.
    pub(crate) progress: bool,
}

/// Two clients, one hold each.
pub(crate) const SMALL: Limits = Limits {
    clients: 2,
    kinds: [Kind::Reentrant; CLIENTS],
    holds: 1,
    attempts: 1,
    renewals: 0,
    guards: 1,
    nested_lease: 1000,
    waiters: 0,
    caches: false,
    reads_own: false,
    crashes: 0,
    messages: 2,
    time: 2,
    rate: 100,
    ahead: 0,
    writes: false,
    fails_over: false,
    replica_acks: false,
    forced: 0,
    progress: false,
};

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// In steps.
    pub(crate) now: u8,
    pub(crate) keys: Keys,
    pub(crate) clients: [Client; CLIENTS],
    /// In the order of their contents: a network has no other.
    pub(crate) messages: [Option<Message>; MESSAGES],
    /// The last token that was granted, with the client and the number of its hold.
    pub(crate) granted: Option<(u64, u8, u8)>,
    /// The largest token that the resource has seen.
    pub(crate) written_token: u64,
    /// What the replica has, until it has taken over.
    pub(crate) replica: Option<Keys>,
    /// How often the forced release was sent, and how many holds it has ended.
    pub(crate) forced: (u8, u8),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) crashed_at: Option<u8>,
    /// How many holds it has begun, and renewals it has sent.
    pub(crate) begun: u8,
    pub(crate) renewed: u8,
    pub(crate) call: Option<Call>,
    pub(crate) hold: Option<Hold>,
    pub(crate) releases: [Option<Queued>; RELEASES],
    /// The holds that are over, with nothing of them left to come.
    pub(crate) settled: u8,
    /// The holds whose release a server has acknowledged, to be sent again if another takes over.
    pub(crate) logged: u8,
    /// Whether it knows that another server has taken over.
    pub(crate) has_moved: bool,
    /// The token of a write that is on its way to the resource.
    pub(crate) write: Option<u64>,
    /// Whether a holder since the last hand-over wanted a nested lease that is longer than the
    /// first.
    pub(crate) wants_longer: bool,
    /// The threads that wait for its hold, and how many have ever waited.
    pub(crate) waiting: u8,
    pub(crate) waited: u8,
}

/// An acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) hold: u8,
    pub(crate) attempts: u8,
    pub(crate) is_asking: bool,
    pub(crate) late_copy_deadline: Option<ServerTime>,
    /// Whether it may be in the queue on the server.
    pub(crate) is_queued: bool,
    /// Whether the last attempt was answered.
    pub(crate) is_answered: bool,
    /// The number of the write hold under which it reads.
    pub(crate) under: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub(crate) struct Hold {
    pub(crate) number: u8,
    /// In milliseconds from the start; `None` if it is over.
    pub(crate) valid_until: Option<u32>,
    pub(crate) late_copy_deadline: Option<ServerTime>,
    pub(crate) guards: u8,
    pub(crate) token: u64,
    pub(crate) is_renewing: bool,
    /// Whether a nested acquire waits for its answer.
    pub(crate) is_nesting: bool,
    /// Whether a count was not acknowledged.
    pub(crate) count_unknown: bool,
    /// Its holder has seen that it is over.
    pub(crate) seen_over: bool,
    /// Whether it was handed over, and whether the next holder has still to look at it.
    pub(crate) handed_over: bool,
    pub(crate) is_given: bool,
    /// Whether it waits for the next acquire of its client.
    pub(crate) is_cached: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queued {
    pub(crate) hold: u8,
    pub(crate) schedule: ReleaseSchedule,
    pub(crate) is_sent: bool,
    /// Only with [`Mutation::HeldWhileReleasing`].
    pub(crate) held_until: Option<u32>,
}

/// A request, or its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Message {
    pub(crate) command: Command,
    pub(crate) sent_at: u8,
    /// Whether its client waits for the reply.
    pub(crate) is_awaited: bool,
    /// Whether it went to a server that was replaced since.
    pub(crate) is_of_old_server: bool,
    /// Whether it is a grant that the replica should have and has not received yet.
    pub(crate) lacks_replica: bool,
    pub(crate) reply: Option<Reply>,
}

/// What the server is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Command {
    pub(crate) client: u8,
    pub(crate) hold: u8,
    pub(crate) verb: Verb,
    pub(crate) not_after: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Verb {
    Acquire {
        /// The number of the own write hold that it names.
        under: Option<u8>,
    },
    Renew,
    /// Another count: that of a hold that was nested, or of a guard that is gone.
    SetCount {
        count: u8,
        nested: bool,
    },
    Release,
    /// The number of the copy.
    ForceRelease(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reply {
    Late,
    /// With a token, or zero.
    Granted(u64),
    Busy,
    Renewed,
    /// Lost, and whether to another owner.
    Lost {
        taken_over: bool,
    },
    Counted,
    Released(ServerTime),
    Forced(bool),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Time,
    Crash(u8),
    Acquire(u8),
    /// The next attempt of an acquire that was refused or not answered.
    AskAgain(u8),
    EndAcquire(u8),
    Renew(u8),
    Nest(u8),
    Unnest(u8),
    /// The last guard is dropped: the hold is handed over, or released.
    Release(u8),
    /// Another thread of the client waits for its hold; is given it and looks; waits no longer.
    Wait(u8),
    TakeOver(u8),
    /// A thread of the client acquires its cached hold.
    TakeCached(u8),
    /// The time of a cached hold is over, or another client has asked for it, or there are too many.
    EndCached(u8),
    LeaveQueue(u8),
    SeeEnd(u8),
    SendRelease(u8, u8),
    BeginWrite(u8),
    EndWrite(u8),
    ForceRelease,
    /// The replica receives all writes.
    Replicate,
    FailOver,
    SeeFailOver(u8),
    /// A message reaches the server, or its reply the client.
    Deliver(u8),
    /// Its client waits no longer.
    GiveUp(u8),
}
