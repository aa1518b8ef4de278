//! A renewal thread, one for each server: renews what is due there, then finishes the releases that are owed there. No
//! error can end it, and no other server delays it.
//!
//! A turn renews everything that has come due since the last one, earliest end of validity first, in scripts of many
//! keys, several in flight.

use std::sync::atomic::Ordering;

use super::Shared;
use super::batches::{Pace, in_batches, is_behind};
use super::finishing::{send_last_releases, send_owed_releases};
use super::renewer::{Due, Renewer};
use super::sweep::{Memory, Sweep, try_again_later};

pub(super) fn run(shared: &Shared, renewer: &Renewer) {
    let mut farewell = Farewell { shared, renewer, dismissed: false };
    let mut memory = Memory::default();
    while !shared.stopping.load(Ordering::Acquire) {
        // Whatever goes wrong in one turn must not end renewal.
        if shared.contained(|| turn(shared, renewer, &mut memory)).is_none() {
            shared.contained(|| put_off_what_was_left(shared, renewer));
        }
        if shared.dismiss(renewer) {
            farewell.dismissed = true;
            return;
        }
        let next = renewer.releases().next_due();
        shared.clock.park(&renewer.parker, next, &crossbeam_channel::never());
    }
    shared.contained(|| send_last_releases(shared, renewer));
}

/// If the thread ends before it is told to (its clock panicked, which nothing else here can), nobody renews on its
/// server any more. Every watched hold there is then lost, and told so, rather than believed in until it happens to be
/// looked at.
struct Farewell<'a> {
    shared: &'a Shared,
    renewer: &'a Renewer,
    /// Its server is none of the client's any more.
    dismissed: bool,
}

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        if !self.dismissed && !self.shared.stopping.load(Ordering::Acquire) {
            self.shared.counters.panicked();
            self.shared.lose_all_watched(self.renewer);
        }
    }
}

fn turn(shared: &Shared, renewer: &Renewer, memory: &mut Memory) {
    shared.check_all_if_moved(&mut memory.jumps);
    let mut due = shared.keep_what_is_here(renewer, renewer.take_due());
    // Earliest end first: if the server is slow, those that can wait do.
    due.sort_by_key(|due: &Due| due.end);
    let settings = &shared.settings;
    let behind = is_behind(due.len(), settings.renewal_keys);
    let keys = if behind { settings.renewal_keys_behind } else { settings.renewal_keys };
    let batches = in_batches(&shared.store, due, keys);
    // A server runs whatever it finds of one client before it looks at the next. So while there is time, only a few go
    // together, and everybody else's commands between them. One after the other would wake both sides for each.
    let mut pace = Pace::of(batches.iter().map(Vec::len), keys);
    if behind || pace.in_groups(batches.len(), memory.round_trip.recent()) > settings.tick {
        pace.hurry();
    }
    let mut sweep = Sweep::new(shared, memory, batches, pace);
    shared.store.stream(renewer.lane, &mut sweep);
    sweep.put_off_the_rest();
    send_owed_releases(shared, renewer, shared.clock.now(), shared.release_timeout());
    shared.look_at_eviction(renewer.lane);
}

/// A turn was cut short. Of what it should have renewed nobody knows how far it came.
fn put_off_what_was_left(shared: &Shared, renewer: &Renewer) {
    let now = shared.clock.now();
    let mut left = shared.holds.all();
    let is_here = |name: &str| shared.store.lane_of(name) == renewer.lane;
    left.retain(|hold| hold.unanswered.load(Ordering::Relaxed) && is_here(hold.name.as_str()));
    for hold in &left {
        try_again_later(shared, hold, now);
    }
    shared.counters.retries(left.len());
}
