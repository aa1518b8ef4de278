//! Replies that no thread waits for, as data (DESIGN: unread releases).

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::model::release_no::ReleaseNo;
use crate::model::sync::Mutex;
use crate::ops::Released;
use crate::store::failure::Failure;

/// The releases that a request carries, whose reply no thread waits for.
#[derive(Debug)]
pub(crate) struct Owed {
    pub(crate) releases: Vec<ReleaseNo>,
    /// By the client's clock, before the request was sent.
    pub(crate) sent_at: Instant,
}

/// The reply to such a request, or why there is none.
#[derive(Debug)]
pub(crate) struct OwedReply {
    pub(crate) owed: Owed,
    pub(crate) reply: Result<Released, Failure>,
}

/// The owed replies that have been read, or never come. Each request has one, and it is taken once.
#[derive(Debug, Default)]
pub(crate) struct OwedReplies {
    replies: Mutex<Vec<OwedReply>>,
    /// Whether there may be some, so that mostly nothing is locked.
    has_some: AtomicBool,
}

impl OwedReplies {
    pub(crate) fn add(&self, reply: OwedReply) {
        self.replies.lock().push(reply);
        self.has_some.store(true, Ordering::Release);
    }

    /// All of them, for the caller to settle.
    pub(crate) fn take(&self) -> Vec<OwedReply> {
        if !self.has_some.load(Ordering::Acquire) {
            return Vec::new();
        }
        // It is set after a reply is there, so it is cleared before the replies are taken.
        self.has_some.store(false, Ordering::Relaxed);
        mem::take(&mut *self.replies.lock())
    }
}

/// What became of a request whose reply no thread waits for.
#[derive(Debug)]
pub(crate) enum SentUnread {
    /// It has ended.
    Answered(Result<Released, Failure>),
    /// It was written to the connection, and its reply is read later.
    Unread,
    /// It was not sent and never will be.
    NotSent,
}
