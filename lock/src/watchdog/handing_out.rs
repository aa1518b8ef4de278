//! What is due goes to the thread of the server that has it, which is started when first needed, and ends when its
//! server is none of the client's any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use super::renewer::{Due, Renewer};
use super::sweep::put_off;
use super::{Shared, renewal};
use crate::error::Error;
use crate::store::Lane;

impl Shared {
    /// Starts the thread of a server, unless it is there.
    pub(super) fn start_renewer(&self, lane: Lane) -> Result<(), Error> {
        let renewer = Arc::new(Renewer::new(lane));
        // A park that returns at once: a manual clock knows the thread before it runs, and does not go on without it.
        self.clock.park(&renewer.parker, Some(self.clock.now()), &crossbeam_channel::never());
        let mut lanes = self.lanes.lock();
        if lanes.find(lane).is_some() {
            return Ok(());
        }
        // With the lanes locked: whoever ends the client looks for threads afterwards.
        let shared = self.this.upgrade().filter(|_| !self.stopping.load(Ordering::Acquire));
        let shared = shared.ok_or(Error::Shutdown)?;
        let own = Arc::clone(&renewer);
        let thread = thread::Builder::new()
            .name("lock-renewal".to_owned())
            .spawn(move || renewal::run(&shared, &own))
            .map_err(|error| Error::Thread { reason: error.to_string() })?;
        // Only one that runs. It looks once more, as what it is woken for may have happened before.
        self.store.wake_on_move(lane, &renewer.parker);
        renewer.parker.unpark();
        lanes.add(renewer, thread);
        self.servers.store(lanes.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Does something with what belongs to a server. `None` if it has no thread and none can be started.
    pub(super) fn with_renewer<R>(
        &self,
        lane: Lane,
        action: impl FnOnce(&Renewer) -> R,
    ) -> Option<R> {
        // With the lanes locked: else its thread might end between.
        {
            let lanes = self.lanes.lock();
            if let Some(renewer) = lanes.find(lane) {
                return Some(action(renewer));
            }
        }
        self.contained(|| self.start_renewer(lane))?.ok()?;
        self.lanes.lock().find(lane).map(action)
    }

    /// Gives what is due to the threads of the servers that have it now.
    pub(super) fn hand_out(&self, due: Vec<Due>) {
        for (lane, mut due) in self.by_lane(due) {
            self.with_renewer(lane, |renewer| renewer.take_on(&mut due));
            if due.is_empty() {
                continue;
            }
            if self.is_lane_gone(lane) {
                // What is leased lasts as long as it was to.
                for due in due.iter().filter(|due| due.hold.watched_lease().is_some()) {
                    self.contained(|| self.lose(&due.hold, due.hold.reason_of_end()));
                }
            } else {
                // No thread can be started now. They are on the wheel, at their end at the latest.
                self.contained(|| put_off(self, &due));
            }
        }
    }

    /// Keeps what is to be renewed on that server. The rest has moved since it came due, and goes to where it is.
    pub(super) fn keep_what_is_here(&self, renewer: &Renewer, due: Vec<Due>) -> Vec<Due> {
        if self.store.only_lane().is_some() {
            return due;
        }
        let (here, moved): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|due| self.lane_of(due) == renewer.lane);
        if !moved.is_empty() {
            self.hand_out(moved);
        }
        here
    }

    fn lane_of(&self, due: &Due) -> Lane {
        self.store.lane_of(due.hold.name.as_str())
    }

    fn by_lane(&self, due: Vec<Due>) -> Vec<(Lane, Vec<Due>)> {
        if let Some(only) = self.store.only_lane() {
            return vec![(only, due)];
        }
        // There are a few servers, so looking along them is quick.
        let mut lanes: Vec<(Lane, Vec<Due>)> = Vec::new();
        for due in due {
            let lane = self.lane_of(&due);
            match lanes.iter_mut().find(|(other, _)| *other == lane) {
                Some((_, all)) => all.push(due),
                None => lanes.push((lane, vec![due])),
            }
        }
        lanes
    }

    /// Whether the thread of a server has ended before it was told to.
    pub(super) fn is_lane_gone(&self, lane: Lane) -> bool {
        self.lanes.lock().find(lane).is_some_and(Renewer::is_gone)
    }

    /// Whether the thread of this server is to end: the server is none of the client's any more, and nothing is left to
    /// be done there. From then on nothing is given to it.
    pub(super) fn dismiss(&self, renewer: &Renewer) -> bool {
        if self.store.knows(renewer.lane) {
            return false;
        }
        let mut lanes = self.lanes.lock();
        if !renewer.is_idle() {
            return false;
        }
        lanes.abandoned += renewer.releases().abandoned;
        lanes.remove(renewer.lane);
        self.servers.store(lanes.len(), Ordering::Relaxed);
        true
    }

    /// How many holds there are for each server.
    pub(super) fn held_by_each(&self) -> usize {
        // Relaxed: the number only says how renewals are laid out in time.
        self.holds.len().div_ceil(self.servers.load(Ordering::Relaxed).max(1))
    }
}
