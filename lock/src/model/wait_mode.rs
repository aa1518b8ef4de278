//! How waiters of a channel wait, and what an attempt means for the other waiters.

use std::time::Duration;

/// What the waiters of a channel wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitMode {
    /// One waiter is granted at a time, and a message reports the end of a hold.
    Exclusive,
    /// Several waiters may be granted, and a message reports a change.
    Shared,
    /// One waiter is granted at a time, and there are no messages: each refusal says how long to
    /// sleep.
    Polled,
    /// The queue is on the server, and this client has one waiter in it. A message reports its
    /// turn, and each refusal says how long to sleep, which may be longer than elsewhere.
    Queued,
    /// Nothing is granted: each message and each poll is a reason to look.
    Watching,
}

/// What a reply means for the other waiters of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeHint {
    /// They would be refused.
    Wait,
    /// They would be refused, for this long at most: then a lease ends that is not renewed, and no
    /// message reports it.
    WaitFor(Duration),
    /// They may be granted something.
    MayTry,
}
