//! One taking of a red lock: what came of it on each server, when it is decided, and whether a majority still holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use hashed_wheel::Parker;
use parking_lot::Mutex;

use crate::asked::Asked;
use crate::error::{Error, LostReason};
use crate::grip::Grip;
use crate::told::{Listener, Together};

/// Shared by the thread that takes, or holds, and those that ask the servers.
#[derive(Debug)]
pub(crate) struct Round {
    quorum: usize,
    /// What the taking thread sleeps on until it is decided.
    pub(crate) parker: Parker,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// By the places of their servers.
    grips: BTreeMap<usize, Grip>,
    /// Servers that have not answered.
    asked: Asked,
    errors: Vec<Error>,
    /// Whether the majority was had once.
    granted: bool,
    /// Nobody joins any more, and nobody believes in it.
    over: bool,
    together: Option<Arc<Together>>,
}

impl Round {
    /// Of that many servers that will be asked.
    pub(crate) fn new(servers: usize, quorum: usize) -> Self {
        let state = State {
            grips: BTreeMap::new(),
            asked: Asked::new(0..servers),
            errors: Vec::new(),
            granted: false,
            over: false,
            together: None,
        };
        Self { quorum, parker: Parker::new(), state: Mutex::new(state) }
    }

    /// A server is asked now; until then its request stood in line.
    pub(crate) fn begun(&self, server: usize, now: Instant) {
        self.state.lock().asked.begun(server, now);
    }

    /// When to look again at what has come, if there may still come enough for a majority. Each server is waited for
    /// for `limit` from when it was asked.
    pub(crate) fn look_again_at(
        &self,
        now: Instant,
        limit: Duration,
        stuck: &[bool],
    ) -> Option<Instant> {
        let state = self.state.lock();
        let needed = self.quorum.saturating_sub(state.grips.len());
        state.asked.look_again_at(now, limit, needed, stuck)
    }

    /// What a server said. A grip that comes too late is let go, on the calling thread.
    pub(crate) fn answered(&self, server: usize, answer: Result<Option<Grip>, Error>) {
        let mut state = self.state.lock();
        state.asked.answered(server);
        let late = match answer {
            Ok(Some(grip)) => state.join(server, grip, self.quorum),
            Ok(None) => None,
            Err(error) => {
                state.errors.push(error);
                None
            }
        };
        let decided = !state.granted && state.is_decided(self.quorum);
        drop(state);
        // It may have to ask the server.
        drop(late);
        if decided {
            self.parker.unpark();
        }
    }

    /// Whether more answers change nothing: a majority is had, or cannot be had any more.
    pub(crate) fn is_decided(&self) -> bool {
        self.state.lock().is_decided(self.quorum)
    }

    /// Whether nobody wants its parts any more.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().over
    }

    /// Whether it has come to a majority. From then on what comes late joins it.
    pub(crate) fn is_granted(&self) -> bool {
        let mut state = self.state.lock();
        state.granted = state.holds(self.quorum);
        state.granted
    }

    /// Whether a majority is held for certain. Once it is not, it never is again.
    pub(crate) fn is_held(&self) -> bool {
        self.state.lock().holds(self.quorum)
    }

    /// How long a majority is held for certain: until the first moment at which too few are left.
    pub(crate) fn remaining(&self) -> Duration {
        let mut state = self.state.lock();
        if !state.holds(self.quorum) {
            return Duration::ZERO;
        }
        let mut times: Vec<Duration> = state.grips.values().map(Grip::remaining).collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        times.get(self.quorum - 1).copied().unwrap_or_default()
    }

    /// An error unless a majority is held for certain: why one of the others is not.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.holds(self.quorum) {
            return Ok(());
        }
        let lost = state.grips.values().find_map(|grip| grip.check().err());
        let name = || state.grips.values().next().map(Grip::name).unwrap_or_default();
        Err(lost.unwrap_or_else(|| Error::Lost { name: name(), reason: LostReason::Expired }))
    }

    /// On how many servers it is held for certain.
    pub(crate) fn held_on(&self) -> usize {
        self.state.lock().held()
    }

    /// A channel that is told when the majority is gone.
    pub(crate) fn listen(&self) -> Receiver<LostReason> {
        let mut state = self.state.lock();
        if state.over {
            // It was seen to be over: no part that comes back makes it good.
            let reason = match state.grips.values().find_map(|grip| grip.check().err()) {
                Some(Error::Lost { reason, .. }) => reason,
                _ => LostReason::Expired,
            };
            let (tell, told) = bounded(1);
            let _fits = tell.try_send(reason);
            return told;
        }
        let (together, told) = Together::new(state.grips.len(), self.quorum);
        for grip in state.grips.values() {
            grip.tell(Listener::Together(Arc::clone(&together)));
        }
        state.together = Some(together);
        told
    }

    /// Ends it: what was taken is the caller's to let go, and what comes later is let go by whoever brings it. With it
    /// the errors, and how many servers' silence kept it from being decided.
    pub(crate) fn close(&self) -> (BTreeMap<usize, Grip>, Vec<Error>, usize) {
        let mut state = self.state.lock();
        state.over = true;
        let silent = if state.is_decided(self.quorum) { 0 } else { state.asked.len() };
        if let Some(together) = state.together.take()
            && state.holds_now(self.quorum)
        {
            together.close();
        }
        (std::mem::take(&mut state.grips), std::mem::take(&mut state.errors), silent)
    }
}

impl State {
    fn held(&self) -> usize {
        self.grips.values().filter(|grip| grip.is_held()).count()
    }

    fn holds_now(&self, quorum: usize) -> bool {
        self.held() >= quorum
    }

    /// Also notes that it is over, if it is: a part that joins later must not make it good again.
    fn holds(&mut self, quorum: usize) -> bool {
        self.over = self.over || !self.holds_now(quorum);
        !self.over
    }

    fn is_decided(&self, quorum: usize) -> bool {
        let had = self.grips.len();
        had >= quorum || had + self.asked.len() < quorum
    }

    /// One more part. Given back if it is not wanted any more.
    fn join(&mut self, server: usize, grip: Grip, quorum: usize) -> Option<Grip> {
        if self.over || (self.granted && !self.holds(quorum)) {
            return Some(grip);
        }
        if let Some(together) = &self.together {
            together.join();
            grip.tell(Listener::Together(Arc::clone(together)));
        }
        self.grips.insert(server, grip)
    }
}
