//! The requests to one server: acquires of the member lock, releases and extensions of the hold.
//! Each request reports the outcome when dropped, even if the request was never sent.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use crate::core::acquire::{acquire, acquire_missing};
use crate::core::client_core::ClientCore;
use crate::core::raw_guard::RawGuard;
use crate::core::release::GuardRelease;
use crate::error::Error;
use crate::events::report::Warning;
use crate::locks::any_lock::MemberLock;
use crate::locks::held_locks::{Extension, HeldLocks, MemberHold};
use crate::locks::red::answers::QuorumAnswers;
use crate::locks::red::attempt::{QuorumAttempt, SentAcquire};
use crate::locks::red::lane::{Refusal, Request};
use crate::model::owner::LocalHolder;
use crate::model::wait::WaitSpec;
use crate::ops::RENEW;
use crate::store::retry::RetryLimit;

/// The word for a release in errors.
pub(crate) const RELEASE: &str = "release";

/// A request to one server for the member lock at `position`. The drop records `answer` in the
/// attempt.
#[derive(Debug)]
pub(crate) struct AcquireRequest {
    attempt: Arc<QuorumAttempt>,
    members: Arc<[MemberLock]>,
    holder: LocalHolder,
    position: usize,
    /// The start of the granted attempt, for a request of a missing member; `None` for a request of
    /// the attempt itself.
    held_since: Option<Instant>,
    answer: Result<Option<RawGuard>, Error>,
}

/// A release or an extension of a member lock's hold, for one server. The drop records `result`
/// among the answers of all servers.
#[derive(Debug)]
pub(crate) struct HoldRequest {
    task: HoldTask,
    all: Arc<QuorumAnswers>,
    result: Result<(), Error>,
}

/// The part of a [`HoldRequest`] to be sent to the server: a release or an extension of a hold.
#[derive(Debug)]
pub(crate) enum HoldTask {
    /// A release. With `on_drop` nothing waits for the reply, as when a guard is dropped.
    Release {
        release: Option<GuardRelease>,
        on_drop: bool,
    },
    Extend {
        held: Arc<HeldLocks>,
        member: MemberHold,
        extension: Extension,
    },
}

impl AcquireRequest {
    /// Returns a request for the owner of the member at `position`, or for `caller` if the member
    /// has no owner. `held_since` is the start of the granted attempt, for a missing member. Until
    /// the request is sent or refused, the answer is [`Error::OutcomeUnknown`].
    pub(crate) fn new(
        attempt: &Arc<QuorumAttempt>,
        members: &Arc<[MemberLock]>,
        caller: &LocalHolder,
        position: usize,
        held_since: Option<Instant>,
    ) -> Self {
        let (attempt, members) = (Arc::clone(attempt), Arc::clone(members));
        let owner = members.get(position).and_then(|member| member.owner.clone());
        let holder = owner.unwrap_or_else(|| caller.clone());
        let reason = "the thread that sent it panicked".into();
        let answer = Err(Error::OutcomeUnknown { operation: "acquire", reason });
        Self { attempt, members, holder, position, held_since, answer }
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Returns the member lock at the request's position.
    fn member(&self) -> Option<&MemberLock> {
        self.members.get(self.position)
    }

    /// Asks the server for the lock `member`, in one try: as part of the attempt, or as a missing
    /// member of the hold. Returns `None` if the lock is busy. If another member has the server's
    /// vote, reports a warning and returns [`Error::InvalidSetting`].
    fn take(&self, member: &MemberLock, now: Instant) -> Result<Option<RawGuard>, Error> {
        let (core, name) = (member.spec.core()?, member.spec.name()?);
        if let Some(run_id) = core.run_id(&name, WaitSpec::ONE_TRY)? {
            let voter = self.members.get(self.attempt.voter(self.position, run_id));
            if let Some(voter) = voter.filter(|voter| !std::ptr::eq(*voter, member)) {
                let servers = [voter.host().to_owned(), member.host().to_owned()];
                let warning = Warning::SharedServer { servers };
                let reason = warning.to_string();
                core.events.warn_once(warning);
                return Err(Error::invalid_setting("red_lock", reason));
            }
        }
        match self.held_since {
            None => {
                let wait = WaitSpec { cancel: Some(&self.attempt.cancel), ..WaitSpec::ONE_TRY };
                acquire(&core, &member.spec, &self.holder, wait)
            }
            Some(since) => {
                let held_for = now.saturating_duration_since(since);
                acquire_missing(&member.spec, &self.holder, held_for)
            }
        }
    }
}

impl Request for AcquireRequest {
    fn send(&mut self, now: Instant) {
        // 1. From now on a grant may arrive, even after the end of the attempt.
        let sent = self.member().and_then(|member| {
            let (core, name) = (member.spec.core().ok()?, member.spec.name().ok()?);
            Some(SentAcquire::new(&core, name))
        });
        self.attempt.sent(self.position, sent);
        // 2. While the request was queued, the attempt may have ended, or the answer to an earlier
        //    request may have arrived.
        let member = self.member().filter(|_| self.attempt.held.wants(self.position));
        self.answer = member.map_or(Ok(None), |member| self.take(member, now));
    }

    fn refuse(mut self, refusal: Refusal) {
        self.answer = match refusal {
            // A full queue is contention, not an error.
            Refusal::QueueFull => Ok(None),
            Refusal::NoThread(reason) => Err(Error::Thread { reason }),
            Refusal::Stuck => {
                let server = self.member().map(|member| member.server.clone()).unwrap_or_default();
                let reason = "the previous request is still unanswered".into();
                Err(Error::Unreachable { server, reason })
            }
        };
    }

    fn core(&self) -> Option<Arc<ClientCore>> {
        self.member()?.spec.core().ok()
    }
}

impl Drop for AcquireRequest {
    fn drop(&mut self) {
        self.attempt.answered(self.position, mem::replace(&mut self.answer, Ok(None)));
    }
}

impl HoldRequest {
    /// Returns a request of `task`, whose result goes to `all`. Until the request is sent, the
    /// result is [`Error::OutcomeUnknown`].
    pub(crate) fn new(task: HoldTask, all: &Arc<QuorumAnswers>) -> Self {
        let reason = "it was not sent in time".into();
        let result = Err(Error::OutcomeUnknown { operation: task.operation(), reason });
        Self { task, all: Arc::clone(all), result }
    }
}

impl HoldTask {
    /// Returns the word for the task in errors.
    pub(crate) fn operation(&self) -> &'static str {
        match self {
            Self::Release { .. } => RELEASE,
            Self::Extend { .. } => RENEW,
        }
    }
}

impl Request for HoldRequest {
    fn send(&mut self, _now: Instant) {
        match &mut self.task {
            HoldTask::Release { release: Some(release), on_drop: true } => {
                self.result = release.send_on_drop();
            }
            HoldTask::Release { release: Some(release), on_drop: false } => {
                self.result = release.send_once();
            }
            HoldTask::Release { release: None, .. } => {}
            HoldTask::Extend { held, member, extension } => {
                self.result = held.extend_member(member, *extension, RetryLimit::One);
            }
        }
    }

    fn refuse(self, _refusal: Refusal) {}

    fn core(&self) -> Option<Arc<ClientCore>> {
        match &self.task {
            HoldTask::Release { release, .. } => release.as_ref().map(GuardRelease::core),
            HoldTask::Extend { member, .. } => Some(Arc::clone(&member.core)),
        }
    }
}

impl Drop for HoldRequest {
    fn drop(&mut self) {
        // The report comes first, because the next line may panic. Dropping an unsent release
        // queues the release.
        self.all.answered(mem::replace(&mut self.result, Ok(())));
        if let HoldTask::Release { release, .. } = &mut self.task {
            drop(release.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locks::any_lock::AsMember;
    use crate::model::sync::Parker;
    use crate::store::memory::Memory;
    use crate::store::retry::RetryLimit;
    use crate::{Client, Clock, SystemClock};

    #[test]
    fn a_member_that_has_joined_is_not_asked_again() {
        let memory = Memory::new();
        let client = Client::builder().in_memory(&memory).build().unwrap();
        let mut member = client.lock("a").as_member();
        member.spec.retries = RetryLimit::One;
        let members: Arc<[MemberLock]> = Arc::new([member]);
        let attempt =
            Arc::new(QuorumAttempt::new("a".to_owned(), 1, 1, &Arc::default(), &Parker::new()));
        let (caller, now) = (LocalHolder::current_thread(), SystemClock.now());
        let request = |held_since| AcquireRequest::new(&attempt, &members, &caller, 0, held_since);
        request(None).send(now);
        assert!(attempt.grant());
        // A request would fail.
        memory.set_unreachable(true);
        request(Some(now)).send(now);
        memory.set_unreachable(false);
        assert_eq!(attempt.held.held(), 1);
        drop(attempt.close());
        assert!(memory.fields("a").is_empty());
    }
}
