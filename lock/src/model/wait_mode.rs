//! How waiters of a channel wait, and the effect of a try on other waiters.

use std::time::Duration;

/// The event for which the waiters of a channel wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitMode {
    /// One waiter is granted at a time, and a message reports the end of a hold.
    Exclusive,
    /// Several waiters may be granted, and a message reports a change.
    Shared,
    /// One waiter is granted at a time, and there are no messages: each refusal says how long to
    /// sleep.
    Polled,
    /// The queue is on the server, and this client has one waiter in the queue. A message reports
    /// the waiter's turn, and each refusal says how long to sleep, which may be longer than
    /// elsewhere.
    Queued,
    /// Nothing is granted: each message and each poll is a reason to inspect the lock.
    Watching,
}

/// The meaning of a reply for the other waiters of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeHint {
    /// The other waiters would be refused.
    Wait,
    /// The other waiters would be refused, for this long at most: then an unrenewed lease ends,
    /// without a message.
    WaitFor(Duration),
    /// The other waiters may be granted a hold or permits.
    MayTry,
}
