//! What a worker thread sends to its server: an acquire or a release. Each reports its outcome
//! exactly once, when it is dropped, even if that is before it ran.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, Reason};
use crate::events::report::Warning;
use crate::lock::acquire::{acquire, acquire_missing};
use crate::lock::any_lock::MemberLock;
use crate::lock::raw_guard::RawGuard;
use crate::lock::red::attempt::{QuorumAttempt, SentAcquire};
use crate::lock::red::queue::Task;
use crate::lock::red::release::QuorumRelease;
use crate::model::owner::LocalHolder;
use crate::model::wait::WaitSpec;
use crate::runtime::client_core::ClientCore;
use crate::runtime::release::ReleaseInProgress;

pub(crate) type ServerTask = Task<AcquireTask, ReleaseTask>;

/// Asks one server for its member lock.
#[derive(Debug)]
pub(crate) struct AcquireTask {
    attempt: Arc<QuorumAttempt>,
    members: Arc<[MemberLock]>,
    holder: LocalHolder,
    position: usize,
    /// When the red lock was granted, if this member is missing from it.
    held_since: Option<Instant>,
    answer: Result<Option<RawGuard>, Error>,
}

/// Releases one server's member lock.
#[derive(Debug)]
pub(crate) struct ReleaseTask {
    release: Option<ReleaseInProgress>,
    all: Arc<QuorumRelease>,
    position: usize,
    /// Whether it is done when it was sent, as when a guard is dropped.
    on_drop: bool,
    result: Result<(), Error>,
}

/// Why a task does not run.
pub(crate) enum Refusal {
    QueueFull,
    Stuck,
    NoThread(Reason),
}

impl Task<AcquireTask, ReleaseTask> {
    /// Sends it, at `now`. Whether the server answered.
    pub(crate) fn run(&mut self, now: Instant) -> bool {
        match self {
            Self::Acquire(acquire) => acquire.run(now),
            Self::Release(release) => release.run(now),
        }
    }

    /// Reports that it does not run.
    pub(crate) fn refuse(self, refusal: Refusal) {
        match self {
            Self::Acquire(acquire) => acquire.refuse(refusal),
            // It reports that when it is dropped.
            Self::Release(release) => drop(release),
        }
    }

    pub(crate) fn position(&self) -> usize {
        match self {
            Self::Acquire(acquire) => acquire.position,
            Self::Release(release) => release.position,
        }
    }

    /// The client that counts its panics.
    pub(crate) fn core(&self) -> Option<Arc<ClientCore>> {
        match self {
            Self::Acquire(acquire) => acquire.member()?.spec.core().ok(),
            Self::Release(release) => release.release.as_ref().map(ReleaseInProgress::core),
        }
    }
}

impl AcquireTask {
    /// For the owner of that member, or for `caller` if it has none.
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

    fn member(&self) -> Option<&MemberLock> {
        self.members.get(self.position)
    }

    fn run(&mut self, now: Instant) -> bool {
        let sent = self.member().and_then(|member| {
            let (core, name) = (member.spec.core().ok()?, member.spec.name().ok()?);
            Some(SentAcquire::new(&core, name))
        });
        self.attempt.sent(self.position, now, sent);
        // By now the attempt may be over, or the answer to an earlier request may have come.
        let member = self.member().filter(|_| self.attempt.held.wants(self.position));
        self.answer = member.map_or(Ok(None), |member| self.take(member, now));
        !self.answer.as_ref().is_err_and(Error::is_server_unavailable)
    }

    /// Asks the server for the lock, unless another member has the vote of that server.
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

    fn refuse(mut self, refusal: Refusal) {
        self.answer = match refusal {
            // A full queue is contention, and no error.
            Refusal::QueueFull => Ok(None),
            Refusal::NoThread(reason) => Err(Error::Thread { reason }),
            Refusal::Stuck => {
                let server = self.member().map(|member| member.server.clone()).unwrap_or_default();
                let reason = "the previous request is still unanswered".into();
                Err(Error::Unreachable { server, reason })
            }
        };
    }
}

impl Drop for AcquireTask {
    fn drop(&mut self) {
        self.attempt.answered(self.position, mem::replace(&mut self.answer, Ok(None)));
    }
}

impl ReleaseTask {
    pub(crate) fn new(
        release: ReleaseInProgress,
        all: &Arc<QuorumRelease>,
        position: usize,
        on_drop: bool,
    ) -> Self {
        let reason = "the release was not sent yet".into();
        let result = Err(Error::OutcomeUnknown { operation: "release", reason });
        Self { release: Some(release), all: Arc::clone(all), position, on_drop, result }
    }

    fn run(&mut self, now: Instant) -> bool {
        self.all.sent(self.position, now);
        if let Some(release) = &mut self.release {
            self.result = if self.on_drop { release.send_on_drop() } else { release.send_once() };
        }
        !self.result.as_ref().is_err_and(Error::is_retryable)
    }
}

impl Drop for ReleaseTask {
    fn drop(&mut self) {
        // Report first, as the next line may panic. A release that was not sent is queued by it.
        self.all.answered(self.position, mem::replace(&mut self.result, Ok(())));
        drop(self.release.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::any_lock::AsMember;
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
        let task = |held_since| AcquireTask::new(&attempt, &members, &caller, 0, held_since);
        assert!(task(None).run(now));
        assert!(attempt.grant());
        // A request would fail.
        memory.set_unreachable(true);
        assert!(task(Some(now)).run(now));
        memory.set_unreachable(false);
        assert_eq!(attempt.held.held(), 1);
        drop(attempt.close());
        assert!(memory.fields("a").is_empty());
    }
}
