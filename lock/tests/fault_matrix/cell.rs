//! One cell: an operation meets a fault. Checks how the call ends, and the state of the servers
//! then and afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wheellock::{Client, Error, LostReason};

use crate::cell_run::{BETWEEN_TWO_LOOKS, CellRun, Returned};
use crate::common::{SLACK, SOON, now, pause, timed};
use crate::faults::{Cut, Fault, Times};
use crate::holding::{Rival, RivalKind};
use crate::injected_fault::InjectedFault;
use crate::lateness::lateness;
use crate::operations::Row;
use crate::place::Place;
use crate::sends::Sends;
use crate::servers::{Kind, Proxies};

/// For how long a fault that comes every time stays.
pub(crate) const WINDOW: Duration = Duration::from_secs(3);

/// The lease of watched holds where their renewals are looked at: a fault that comes every time
/// outlasts it.
const SHORT_LEASE: Duration = Duration::from_secs(2);

/// Of those whose server is restarted: it is there again before the lease ends, also on a busy
/// machine.
const RESTART_LEASE: Duration = Duration::from_secs(6);

/// The lease of others: what is left behind is still there at the check.
const LONG_LEASE: Duration = Duration::from_secs(30);

/// Room for a rival that could acquire although another holds.
const ROOM: Duration = Duration::from_millis(60);

/// How long the server remembers what it answered, in ms.
const REMEMBERED: i64 = 64_000;

/// One cell of the matrix.
#[derive(Clone)]
pub(crate) struct Cell {
    pub(crate) row: Row,
    pub(crate) fault: Fault,
    pub(crate) times: Times,
    pub(crate) cut: Cut,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) word: String,
    /// For how long the process stood still during the call.
    pub(crate) stood_still: Duration,
    pub(crate) failures: Vec<String>,
}

/// A call during which the process stood still for so long may run out of time, whatever the fault:
/// the last attempt of a call that is refused each time has some tens of milliseconds.
const STOOD_STILL: Duration = Duration::from_millis(10);

impl Outcome {
    /// Whether the call ran out of time and the process stood still meanwhile. Then the outcome says
    /// nothing about the fault.
    pub(crate) fn was_out_of_time(&self) -> bool {
        self.stood_still >= STOOD_STILL
            && matches!(self.word.as_str(), "unreachable" | "unknown" | "lost (unreachable)")
    }
}

impl Cell {
    pub(crate) fn name(&self) -> String {
        let times = match self.times {
            Times::First => "first try",
            Times::Every => "every try",
        };
        let Row { family, name, .. } = self.row;
        let cut = match self.fault {
            Fault::Cut => format!(" ({})", self.cut.describe()),
            _ => String::new(),
        };
        format!("{family}: {name}: {}{cut}: {times}", self.fault.name())
    }

    /// Whether the call may end so too, as that depends on the machine. A node that was restarted
    /// refuses everything until the node has joined the cluster again. And the last attempt of a call
    /// that is refused each time has milliseconds: without an answer in time the outcome is unknown.
    pub(crate) fn may_end(&self, word: &str) -> bool {
        let is_joining = self.fault == Fault::Restarted && self.row.kind == Kind::InCluster;
        let is_refused = self.times == Times::Every && self.fault.name().starts_with('`');
        word == "unknown" && (is_joining || is_refused)
            || is_joining && word == "`CLUSTERDOWN`"
            || is_refused && word == self.fault.name()
    }

    pub(crate) fn run(&self, place: &Place) -> Outcome {
        place.clear();
        let proxies = Arc::new(place.servers().start_proxies());
        let client = self.client(place, &proxies);
        let run = CellRun::new(place, &proxies, &client, (self.row, "thing"), self.times);
        let mut checks = Checks { row: self.row, failures: Vec::new() };
        let (word, stood_still) = match (self.row.prepare)(&run) {
            Ok(_) => self.meet(&run, &mut checks),
            Err(error) => {
                checks.fail(format!("it could not be prepared: {error}"));
                (String::new(), Duration::ZERO)
            }
        };
        checks.works_again(&run);
        // Of those that came every time the last was sent long ago.
        let are_some_late = self.times == Times::First || self.row.background;
        if self.fault == Fault::Delayed && are_some_late {
            // Copies are still on their way. When they arrive they must do nothing.
            pause(self.row.timeout() * 2);
        }
        checks.leaves_nothing(&run, &client);
        Outcome { word, stood_still, failures: checks.failures }
    }

    fn client(&self, place: &Place, proxies: &Proxies) -> Client {
        let asked = proxies.asked_for_the_master();
        let lease = match (self.fault, self.times) {
            _ if !self.row.background => LONG_LEASE,
            (Fault::Restarted, Times::First) => RESTART_LEASE,
            _ => SHORT_LEASE,
        };
        let mut client = None;
        assert!(
            comes_true(|| {
                client =
                    place.builder(proxies, self.row.timeout()).watchdog_lease(lease).build().ok();
                client.is_some()
            }),
            "there is no client"
        );
        if place.kind == Kind::BehindSentinels {
            // The second time by the thread that listens: it does, and asks no more by itself.
            assert!(comes_true(|| asked.hits() >= 2), "no sentinel is listened to");
        }
        asked.withdraw();
        client.unwrap()
    }

    /// The call, the fault, and what is held afterwards. Returns the word for how the call ended, and
    /// for how long the process stood still during the call.
    fn meet(&self, run: &CellRun<'_>, checks: &mut Checks) -> (String, Duration) {
        let row = self.row;
        let held_before = run.has_something();
        // A waiter may have acquired it just before it was taken away.
        let may_share = self.fault.takes_keys_away() && (held_before || row.fresh_connection);
        let mut injected = InjectedFault::new();
        let sent = self.begin(run, &mut injected);
        let kind = row.rival.filter(|_| held_before && !may_share);
        let mut rival = kind.map(|kind| Rival::start(run.place, &run.name, kind));

        let late_before = lateness();
        let (result, took) = timed(|| (row.act)(run));
        let stood_still = lateness().saturating_sub(late_before);
        let is_well = matches!(result, Ok(Returned::Done));
        let word = word(&result, sent() > row.requests);
        let late = if row.background { WINDOW + SOON } else { SLACK * 2 };
        let bound = row.timeout() * 2 + row.longer + late;
        if took > bound {
            checks.fail(format!("it took {took:?}, more than {bound:?}"));
        }
        checks.keys_end_by_themselves(run, self.fault);
        if let Some(hits) = self.expected_hits(&injected, &result)
            && !comes_true(|| injected.hits() >= Some(hits))
        {
            checks.fail("the fault has not happened".to_owned());
        }
        if self.times == Times::First {
            injected.end(run);
        }
        if rival.is_none() {
            rival = row.rival.map(|kind| Rival::start(run.place, &run.name, kind));
        }
        run.wait_and_look(match self.times {
            Times::First => now() + ROOM,
            Times::Every => run.window_ends.get(),
        });
        checks.keys_end_by_themselves(run, self.fault);
        if self.times == Times::Every {
            injected.end(run);
        }

        let keeps = self.times == Times::First && !self.fault.takes_keys_away();
        if keeps && row.rival.is_some() && run.has_something() && !run.look() {
            checks.fail("a hold was lost after a single fault".to_owned());
        }
        let own = run.intervals();
        for (is_held, released) in run.release_all() {
            // Whoever lost it may not have learnt of it yet.
            checks.released(is_held && !self.fault.takes_keys_away(), &released);
        }
        (row.finish)(run);
        if self.fault.takes_keys_away() && row.rival == Some(RivalKind::Permit) {
            // The permits went with the keys.
            run.place.command(&["SET", &run.name, "1"]);
        }
        if let Some(rival) = rival {
            let before = rival.grants();
            // One grant may have been under way before the release.
            if !comes_true(|| rival.grants() > before + 1) {
                checks.fail("it does not become free".to_owned());
            }
            let theirs = rival.stop();
            let both = |mine: &_| theirs.iter().any(|other| other.overlaps(*mine));
            if !may_share && own.iter().any(both) {
                checks.fail(format!("two believed to hold it: {own:?} and {theirs:?}"));
            }
        }
        if !self.fault.takes_keys_away() {
            checks.number(run, is_well);
        }
        (word, stood_still)
    }

    /// Puts the fault in force. How often the operation is sent from then on, by whatever try.
    fn begin(&self, run: &CellRun<'_>, injected: &mut InjectedFault) -> impl Fn() -> usize + use<> {
        // Before the fault: the oldest aim sees a request first.
        let sent = run.count(self.row.sends);
        let Row { background, fresh_connection, .. } = self.row;
        let foreign = (self.row.foreign)(&run.name);
        let begin = |injected: &mut InjectedFault| {
            run.window_ends.set(now() + WINDOW);
            injected.begin(run, self, &foreign);
        };
        if self.fault != Fault::Refused || fresh_connection {
            begin(injected);
        } else if background {
            begin(injected);
            run.proxy().cut_all();
        } else {
            // The operation itself is to make the connection, so the open ones are used up.
            run.proxy().refuse(true);
            run.proxy().cut_all();
            assert!(run.client.lock("probe").is_locked().is_err(), "nothing can be reached");
            begin(injected);
            run.proxy().refuse(false);
        }
        // Whatever it took to get here does not count.
        let before = sent();
        move || sent() - before
    }

    /// How often the fault must have happened at least, if that is known.
    fn expected_hits(
        &self,
        injected: &InjectedFault,
        result: &Result<Returned, Error>,
    ) -> Option<usize> {
        injected.hits()?;
        let by_hash = matches!(self.row.sends, Sends::Script(_));
        match self.fault {
            Fault::NoScript if self.times == Times::Every && !by_hash => None,
            // It did not come to the operation.
            Fault::WrongType | Fault::OutOfMemory | Fault::ReadOnly if result.is_err() => None,
            _ => Some(1),
        }
    }
}

/// The word for how a call ended.
fn word(result: &Result<Returned, Error>, again: bool) -> String {
    match result {
        Ok(Returned::Done) if again => "again".to_owned(),
        Ok(Returned::Done) => "ok".to_owned(),
        Ok(Returned::Nothing) => "none".to_owned(),
        Ok(Returned::Held) => "held".to_owned(),
        Ok(Returned::Lost(reason)) | Err(Error::Lost { reason, .. }) => lost(*reason),
        Ok(Returned::Queued) => "queued".to_owned(),
        Ok(Returned::Polls) => "polls".to_owned(),
        Err(Error::Refused { code, .. }) => format!("`{code}`"),
        Err(Error::Unreachable { .. }) => "unreachable".to_owned(),
        Err(Error::OutcomeUnknown { .. }) => "unknown".to_owned(),
        Err(Error::WrongType { .. }) => "wrong type".to_owned(),
        Err(Error::NotReplicated { .. }) => "not replicated".to_owned(),
        Err(other) => format!("unexpected: {other:?}"),
    }
}

fn lost(reason: LostReason) -> String {
    let reason = match reason {
        LostReason::ServerUnreachable => "unreachable",
        LostReason::Refused { .. } => "refused",
        LostReason::Deleted => "deleted",
        LostReason::TakenOver => "taken over",
        other => return format!("unexpected: {other:?}"),
    };
    format!("lost ({reason})")
}

/// Gathers what is wrong.
struct Checks {
    row: Row,
    failures: Vec<String>,
}

impl Checks {
    fn fail(&mut self, what: String) {
        self.failures.push(what);
    }

    /// No key is without an expiry, except where Redisson's layout has none.
    fn keys_end_by_themselves(&mut self, run: &CellRun<'_>, fault: Fault) {
        let mut lasting = (self.row.lasting)(&run.name);
        if fault == Fault::WrongType {
            lasting.push((self.row.foreign)(&run.name));
        }
        for (key, lives) in run.place.keys() {
            if lives == -1 && !lasting.contains(&key) {
                self.fail(format!("the key {key} lives forever"));
            }
        }
    }

    fn released(&mut self, is_held: bool, released: &Result<Returned, Error>) {
        match released {
            Ok(_) => {}
            Err(Error::Lost { .. }) if !is_held => {}
            Err(error) => self.fail(format!("once the fault is gone, its release says {error}")),
        }
    }

    /// The number under the name comes to what it is to be.
    fn number(&mut self, run: &CellRun<'_>, is_well: bool) {
        let Some((well, otherwise)) = self.row.number else { return };
        let allowed = if is_well { well } else { otherwise };
        let mut found = String::new();
        let fits = comes_true(|| {
            found = run.place.text(&run.name);
            allowed.is_empty() || allowed.contains(&found.as_str())
        });
        if !fits {
            self.fail(format!("there stands {found:?} and not one of {allowed:?}"));
        }
    }

    /// The client makes the same call once more, under another name. It must not fail.
    fn works_again(&mut self, run: &CellRun<'_>) {
        let name = run.other("again");
        let CellRun { place, proxies, client, .. } = *run;
        let again = CellRun::new(place, proxies, client, (self.row, &name), Times::First);
        let mut result = Ok(Returned::Nothing);
        comes_true(|| {
            let late_before = lateness();
            result = (self.row.prepare)(&again).and_then(|_| (self.row.act)(&again));
            let stood_still = lateness().saturating_sub(late_before) >= STOOD_STILL;
            // On a busy machine the time of a call may be over before the server has it.
            let has_answer = match result {
                Err(Error::Unreachable { .. }) => false,
                Err(Error::OutcomeUnknown { .. }) => !stood_still,
                _ => true,
            };
            if !has_answer {
                drop(again.release_all());
                (self.row.finish)(&again);
            }
            has_answer
        });
        if !matches!(
            result,
            Ok(Returned::Done | Returned::Nothing | Returned::Held | Returned::Queued)
        ) {
            self.fail(format!("once the fault is gone, the same call says {result:?}"));
        }
        for (is_held, released) in again.release_all() {
            self.released(is_held, &released);
        }
        (self.row.finish)(&again);
    }

    /// No release is queued, and nothing stands there but what is to stay.
    fn leaves_nothing(&mut self, run: &CellRun<'_>, client: &Client) {
        if !comes_true(|| client.stats().queued_releases == 0) {
            self.fail(format!("releases still queued: {:?}", client.stats()));
        }
        if client.stats().panics > 0 {
            self.fail("the watchdog has caught a panic".to_owned());
        }
        let lasting = |name: &str| (self.row.lasting)(name);
        let stay = [lasting(&run.name), lasting(&run.other("again"))].concat();
        let mut left = Vec::new();
        let clean = comes_true(|| {
            left = run.place.keys();
            left.retain(|(key, lives)| {
                let remembered = ["wheellock_request:", "wheellock_client:"]
                    .iter()
                    .any(|ours| key.starts_with(ours))
                    && (0..=REMEMBERED).contains(lives);
                !remembered && !stay.contains(key)
            });
            left.is_empty()
        });
        if !clean {
            self.fail(format!("left behind: {left:?}"));
        }
    }
}

/// Whether a condition comes true before long.
fn comes_true(condition: impl FnMut() -> bool) -> bool {
    comes_true_by(now() + SOON, condition)
}

/// Whether a condition comes true until then.
pub(crate) fn comes_true_by(ends: Instant, mut condition: impl FnMut() -> bool) -> bool {
    loop {
        let late = now() >= ends;
        if condition() {
            return true;
        }
        if late {
            return false;
        }
        pause(BETWEEN_TWO_LOOKS);
    }
}
