//! What a thread with a call sleeps on, and what other threads leave there for it.

use std::sync::Arc;

use crate::model::panics::catch_panic;
use crate::model::sync::{Condvar, Mutex};
use crate::ops::value::Value;
use crate::store::redis::net::connection::Broken;
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::call_queue::{Caller, Roles};

/// Takes the reply to a call that no thread waits for. It is called by the thread that reads, with
/// nothing locked, and must not block.
pub(crate) type RawReplyHandler = Box<dyn FnOnce(Result<Value, Broken>) + Send>;

/// What the thread of a call sleeps on.
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    posted: Condvar,
}

/// What others have left for a thread.
#[derive(Default)]
pub(crate) struct Mail {
    pub(crate) outcome: Option<Result<Value, Broken>>,
    pub(crate) roles: Roles,
    pub(crate) is_written: bool,
    pub(crate) is_sleeping: bool,
}

/// What a thread does for others once nothing is locked.
#[derive(Default)]
pub(crate) struct DeferredWork {
    /// In this order.
    pub(crate) to_wake: Vec<Arc<Mailbox>>,
    pub(crate) replies: Vec<(RawReplyHandler, Result<Value, Broken>)>,
    /// To be dropped.
    pub(crate) unused: Vec<RawReplyHandler>,
}

impl Mailbox {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { mail: Mutex::new(Mail::default()), posted: Condvar::new() })
    }

    /// Leaves something for the thread. Returns whether it sleeps and has to be woken.
    pub(crate) fn post(&self, change: impl FnOnce(&mut Mail)) -> bool {
        let mut mail = self.mail.lock();
        change(&mut mail);
        mail.is_sleeping
    }

    pub(crate) fn take(&self) -> Mail {
        std::mem::take(&mut *self.mail.lock())
    }

    /// Sleeps until something is posted. `None` if that is nothing by the deadline.
    pub(crate) fn wait(&self, deadline: &mut Deadline) -> Option<Mail> {
        let mut mail = self.mail.lock();
        while mail.is_empty() {
            mail.is_sleeping = true;
            let left = deadline.refresh().left();
            if let Ok(left) = left {
                self.posted.wait_for(&mut mail, left);
            }
            mail.is_sleeping = false;
            if left.is_err() {
                return None;
            }
        }
        Some(std::mem::take(&mut *mail))
    }
}

impl Mail {
    fn is_empty(&self) -> bool {
        self.outcome.is_none() && self.roles == Roles::default() && !self.is_written
    }
}

impl DeferredWork {
    pub(crate) fn post(&mut self, mailbox: Arc<Mailbox>, change: impl FnOnce(&mut Mail)) {
        if mailbox.post(change) {
            self.to_wake.push(mailbox);
        }
    }

    /// The connection has ended.
    pub(crate) fn fail(&mut self, caller: Caller<Arc<Mailbox>, RawReplyHandler>, broken: Broken) {
        match (caller, &broken) {
            (Caller::Sending(mailbox, handler), Broken::NotSent(_)) => {
                self.unused.push(handler);
                self.post(mailbox, |mail| mail.outcome = Some(Err(broken)));
            }
            (Caller::Waiting(mailbox), _) => {
                self.post(mailbox, |mail| mail.outcome = Some(Err(broken)));
            }
            (Caller::Sending(mailbox, handler), Broken::Unanswered(_)) => {
                self.post(mailbox, |mail| mail.is_written = true);
                self.replies.push((handler, Err(broken)));
            }
            (Caller::Detached(handler), _) => self.replies.push((handler, Err(broken))),
            // The thread that reads learns it by itself.
            (Caller::Reader | Caller::Gone, _) => {}
        }
    }

    pub(crate) fn run(self) {
        for mailbox in self.to_wake {
            mailbox.posted.notify_one();
        }
        catch_panic(|| drop(self.unused));
        for (handler, reply) in self.replies {
            // A panic is not passed on to a thread that only reads for others.
            catch_panic(|| handler(reply));
        }
    }
}
