//! Releases whose replies no thread waits for.
//!
//! A dropped guard does not need the reply to its release, so the drop returns once the bytes are
//! in the kernel. This saves a tenth of an uncontended lock and drop on one core, and half of both
//! if client and server have a core each. `CLIENT REPLY SKIP` would save no more, and would hide
//! `NOSCRIPT`, `READONLY` and `MOVED`.
//!
//! The replies are stored here as data, and no code runs where they are read. The client takes and
//! settles them later: at the end of each call, after the renewal thread has read replies, while a
//! thread waits for its own release, and at a shutdown.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::model::release_no::ReleaseNo;
use crate::model::sync::Mutex;
use crate::ops::Released;
use crate::store::failure::Failure;

/// The releases in a request whose reply is left unread.
#[derive(Debug)]
pub(crate) struct UnreadReleases {
    pub(crate) releases: Vec<ReleaseNo>,
    /// The time before the request was sent, by the client's clock.
    pub(crate) sent_at: Instant,
}

/// The reply to a request for [`UnreadReleases`], or the reason for its absence.
#[derive(Debug)]
pub(crate) struct ReleaseReply {
    pub(crate) unread: UnreadReleases,
    pub(crate) reply: Result<Released, Failure>,
}

/// The replies to unread releases that the client has not taken yet. Each request has one reply, or
/// the reason why the reply will never arrive.
#[derive(Debug, Default)]
pub(crate) struct ReleaseReplies {
    replies: Mutex<Vec<ReleaseReply>>,
    /// Whether `replies` may be non-empty. If not, `take` locks nothing.
    has_some: AtomicBool,
}

impl ReleaseReplies {
    /// Stores a reply for the next [`take`](Self::take).
    pub(crate) fn add(&self, reply: ReleaseReply) {
        self.replies.lock().push(reply);
        self.has_some.store(true, Ordering::Release);
    }

    /// Removes and returns all stored replies. The caller settles the releases.
    pub(crate) fn take(&self) -> Vec<ReleaseReply> {
        if !self.has_some.load(Ordering::Acquire) {
            return Vec::new();
        }
        // `add` sets the flag after the push, so the flag is cleared before the replies are taken.
        self.has_some.store(false, Ordering::Relaxed);
        mem::take(&mut *self.replies.lock())
    }
}

/// The state of a request sent without a wait for its reply.
#[derive(Debug)]
pub(crate) enum SentUnread {
    /// The request has ended.
    Answered(Result<Released, Failure>),
    /// The request was written to the connection. The reply is read later.
    Unread,
    /// The request was not sent and never will be.
    NotSent,
}
